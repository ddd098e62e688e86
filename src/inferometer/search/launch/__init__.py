"""How a plan is started: processes of vLLM, SGLang and TensorRT-LLM, their routers, the benchmark that checks it."""
