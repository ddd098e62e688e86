def megatron_lines(*a): return []
def train_line(*a): return ""
