"""The schema of arguments as TypedDicts, for type checkers. Written by tools/keywords.py: do not edit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from .structs import Calibration


class PlanKwargs(TypedDict, total=False):
    """PlanArgs."""

    engine: str | None
    power_cap: float | None
    assume_decoder: bool | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    enable_expert_parallel: bool | None
    sequence_parallel: bool | None
    decode_context_parallel_size: int | None
    micro_batches: int | None
    nodes: int | None
    gpus_per_node: int | None
    interconnect: str | None
    overlap: float | None
    speculative_config: str | Mapping[str, Any] | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_adapters: int | None
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    quantization: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    mamba_ssm_cache_dtype: str | None
    norm_dtype: str | None
    kv_offloading_size: float | None
    kv_offloading_backend: str | None
    enable_hierarchical_cache: bool | None
    hicache_ratio: float | None
    hicache_size: float | None
    hicache_write_policy: str | None
    hicache_storage_backend: str | None
    kv_tiers: str | Iterable[str] | Mapping[str, Any] | None
    attention: str | None
    fusion: bool | None
    frontend: str | None
    efficiency: float | str | Mapping[str, float] | None
    host_profile: str | None
    profile: str | None
    calibration: str | Calibration | None
    routing_skew: float | None
    moe_backend: str | None
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_cudagraph_capture_size: int | None
    max_prefill_cudagraph_capture_size: int | None
    gpu_memory_utilization: float | None
    block_size: int | None
    hf_token: str | None
    batch_size: int | None
    input_len: int | str | Sequence[int] | None
    output_len: int | None
    prefix_len: int | None
    prefix_tier: str | None
    beam_width: int | None
    turns: str | Sequence[tuple[int, int]] | None
    images: str | tuple[int, int, int] | None
    num_inference_steps: int | None
    usecase: str | None


class SimulatedKwargs(TypedDict, total=False):
    """ServedPlanArgs."""

    engine: str | None
    power_cap: float | None
    assume_decoder: bool | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    enable_expert_parallel: bool | None
    sequence_parallel: bool | None
    decode_context_parallel_size: int | None
    micro_batches: int | None
    nodes: int | None
    gpus_per_node: int | None
    interconnect: str | None
    overlap: float | None
    speculative_config: str | Mapping[str, Any] | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_adapters: int | None
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    quantization: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    mamba_ssm_cache_dtype: str | None
    norm_dtype: str | None
    kv_offloading_size: float | None
    kv_offloading_backend: str | None
    enable_hierarchical_cache: bool | None
    hicache_ratio: float | None
    hicache_size: float | None
    hicache_write_policy: str | None
    hicache_storage_backend: str | None
    kv_tiers: str | Iterable[str] | Mapping[str, Any] | None
    attention: str | None
    fusion: bool | None
    frontend: str | None
    efficiency: float | str | Mapping[str, float] | None
    host_profile: str | None
    profile: str | None
    calibration: str | Calibration | None
    routing_skew: float | None
    moe_backend: str | None
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_cudagraph_capture_size: int | None
    max_prefill_cudagraph_capture_size: int | None
    gpu_memory_utilization: float | None
    block_size: int | None
    hf_token: str | None
    columns: str | Mapping[str, str] | None
    run: int | None
    num_prompts: int | None
    request_rate: float | None
    burstiness: float | None
    input_len: int | str | None
    output_len: int | str | None
    prefix_len: int | None
    turns: int | str | None
    think_time: float | str | None
    seed: int | None
    agents: str | Mapping[str, Any] | None
    like: str | None
    num_sessions: int | None
    max_idle: float | None
    warm_cache: float | str | None


class SimulateKwargs(TypedDict, total=False):
    """ServingArgs."""

    engine: str | None
    power_cap: float | None
    assume_decoder: bool | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    enable_expert_parallel: bool | None
    sequence_parallel: bool | None
    decode_context_parallel_size: int | None
    micro_batches: int | None
    nodes: int | None
    gpus_per_node: int | None
    interconnect: str | None
    overlap: float | None
    speculative_config: str | Mapping[str, Any] | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_adapters: int | None
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    quantization: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    mamba_ssm_cache_dtype: str | None
    norm_dtype: str | None
    kv_offloading_size: float | None
    kv_offloading_backend: str | None
    enable_hierarchical_cache: bool | None
    hicache_ratio: float | None
    hicache_size: float | None
    hicache_write_policy: str | None
    hicache_storage_backend: str | None
    kv_tiers: str | Iterable[str] | Mapping[str, Any] | None
    attention: str | None
    fusion: bool | None
    frontend: str | None
    efficiency: float | str | Mapping[str, float] | None
    host_profile: str | None
    profile: str | None
    calibration: str | Calibration | None
    routing_skew: float | None
    moe_backend: str | None
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_cudagraph_capture_size: int | None
    max_prefill_cudagraph_capture_size: int | None
    gpu_memory_utilization: float | None
    block_size: int | None
    hf_token: str | None
    scheduler: str | None
    policy: str | None
    enable_prefix_caching: bool | None
    long_prefill_token_threshold: int | None
    prefill_schedule_interval: int | None
    prefill_max_requests: int | None
    scheduler_recv_interval: int | None
    batch_wait_timeout_iters: int | None
    batch_wait_max_tokens_ratio: float | None
    attention_dp_timeout_iters: int | None
    attention_dp_batching_wait_iters: int | None
    api_server_count: int | None
    num_gpu_blocks_override: int | None
    router: str | None
    prefill_replicas: int | None
    decode_replicas: int | None
    autoscale: str | Mapping[str, Any] | None
    goodput: str | Iterable[str] | Mapping[str, float] | None
    max_concurrency: int | None
    concurrent_sessions: int | None
    pools: Sequence[Mapping[str, Any]] | None
    async_scheduling: bool | None
    stops: str
    fast_forward: bool


class CapacityKwargs(TypedDict, total=False):
    """ServingArgs."""

    engine: str | None
    power_cap: float | None
    assume_decoder: bool | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    enable_expert_parallel: bool | None
    sequence_parallel: bool | None
    decode_context_parallel_size: int | None
    micro_batches: int | None
    nodes: int | None
    gpus_per_node: int | None
    interconnect: str | None
    overlap: float | None
    speculative_config: str | Mapping[str, Any] | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_adapters: int | None
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    quantization: str | None
    dtype: str | None
    kv_cache_dtype: str | None
    mamba_ssm_cache_dtype: str | None
    norm_dtype: str | None
    kv_offloading_size: float | None
    kv_offloading_backend: str | None
    enable_hierarchical_cache: bool | None
    hicache_ratio: float | None
    hicache_size: float | None
    hicache_write_policy: str | None
    hicache_storage_backend: str | None
    kv_tiers: str | Iterable[str] | Mapping[str, Any] | None
    attention: str | None
    fusion: bool | None
    frontend: str | None
    efficiency: float | str | Mapping[str, float] | None
    host_profile: str | None
    profile: str | None
    calibration: str | Calibration | None
    routing_skew: float | None
    moe_backend: str | None
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    max_cudagraph_capture_size: int | None
    max_prefill_cudagraph_capture_size: int | None
    gpu_memory_utilization: float | None
    block_size: int | None
    hf_token: str | None
    scheduler: str | None
    policy: str | None
    enable_prefix_caching: bool | None
    long_prefill_token_threshold: int | None
    prefill_schedule_interval: int | None
    prefill_max_requests: int | None
    scheduler_recv_interval: int | None
    batch_wait_timeout_iters: int | None
    batch_wait_max_tokens_ratio: float | None
    attention_dp_timeout_iters: int | None
    attention_dp_batching_wait_iters: int | None
    api_server_count: int | None
    num_gpu_blocks_override: int | None
    router: str | None
    prefill_replicas: int | None
    decode_replicas: int | None
    autoscale: str | Mapping[str, Any] | None
    columns: str | Mapping[str, str] | None
    run: int | None
    num_prompts: int | None
    request_rate: float | None
    burstiness: float | None
    input_len: int | str | None
    output_len: int | str | None
    prefix_len: int | None
    turns: int | str | None
    think_time: float | str | None
    max_concurrency: int | None
    pools: Sequence[Mapping[str, Any]] | None
    async_scheduling: bool | None
    stops: str
    fast_forward: bool


class SearchKwargs(TypedDict, total=False):
    """SearchArgs."""

    num_gpus: int | None
    nodes: int | None
    gpus_per_node: int | None
    input_len: int | float | str | None
    output_len: int | float | str | None
    prefix_len: int | None
    request_rate: float | str | None
    burstiness: float | None
    goodput: str | Iterable[str] | Mapping[str, float] | None
    goodput_share: float | None
    objective: str | None
    window: float | None
    autoscale: str | Mapping[str, Any] | None
    mode: str | None
    tensor_parallel_size: int | str | Sequence[int] | None
    pipeline_parallel_size: int | str | Sequence[int] | None
    data_parallel_size: int | str | Sequence[int] | None
    enable_expert_parallel: bool | Sequence[bool] | None
    quantization: str | Sequence[str] | None
    kv_cache_dtype: str | Sequence[str] | None
    max_num_batched_tokens: int | str | Sequence[int] | None
    max_num_seqs: int | str | Sequence[int] | None
    kv_offloading_size: int | float | str | Sequence[float] | None
    speculative_config: str | Mapping[str, Any] | None
    finalists: int | None
    engine: str | None
    power_cap: float | None
    frontend: str | None
    dtype: str | None
    interconnect: str | None
    efficiency: float | str | Mapping[str, float] | None
    profile: str | None
    calibration: str | None
    gpu_memory_utilization: float | None
    routing_skew: float | None
    moe_backend: str | None
    mamba_ssm_cache_dtype: str | None
    assume_decoder: bool | None
    hf_token: str | None
    backend: str | None
    jobs: int | None
    seed: int | None
    sequence_parallel: bool | None
    decode_context_parallel_size: int | None
    micro_batches: int | None
    overlap: float | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_adapters: int | None
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    norm_dtype: str | None
    kv_offloading_backend: str | None
    enable_hierarchical_cache: bool | None
    hicache_ratio: float | None
    hicache_size: float | None
    hicache_write_policy: str | None
    hicache_storage_backend: str | None
    kv_tiers: str | Iterable[str] | Mapping[str, Any] | None
    attention: str | None
    fusion: bool | None
    host_profile: str | None
    max_model_len: int | None
    max_cudagraph_capture_size: int | None
    max_prefill_cudagraph_capture_size: int | None
    block_size: int | None
    batch_size: int | None
    prefix_tier: str | None
    beam_width: int | None
    turns: str | Sequence[tuple[int, int]] | None
    images: str | tuple[int, int, int] | None
    num_inference_steps: int | None
    usecase: str | None


class SessionSearchKwargs(TypedDict, total=False):
    """SearchArgs."""

    num_gpus: int | None
    nodes: int | None
    gpus_per_node: int | None
    input_len: int | float | str | None
    output_len: int | float | str | None
    prefix_len: int | None
    request_rate: float | str | None
    burstiness: float | None
    goodput: str | Iterable[str] | Mapping[str, float] | None
    goodput_share: float | None
    objective: str | None
    window: float | None
    autoscale: str | Mapping[str, Any] | None
    mode: str | None
    tensor_parallel_size: int | str | Sequence[int] | None
    pipeline_parallel_size: int | str | Sequence[int] | None
    data_parallel_size: int | str | Sequence[int] | None
    enable_expert_parallel: bool | Sequence[bool] | None
    quantization: str | Sequence[str] | None
    kv_cache_dtype: str | Sequence[str] | None
    max_num_batched_tokens: int | str | Sequence[int] | None
    max_num_seqs: int | str | Sequence[int] | None
    kv_offloading_size: int | float | str | Sequence[float] | None
    speculative_config: str | Mapping[str, Any] | None
    finalists: int | None
    engine: str | None
    power_cap: float | None
    frontend: str | None
    dtype: str | None
    interconnect: str | None
    efficiency: float | str | Mapping[str, float] | None
    profile: str | None
    calibration: str | None
    gpu_memory_utilization: float | None
    routing_skew: float | None
    moe_backend: str | None
    mamba_ssm_cache_dtype: str | None
    assume_decoder: bool | None
    hf_token: str | None
    backend: str | None
    jobs: int | None
    seed: int | None
    agents: str | Mapping[str, Any] | None
    like: str | None
    num_sessions: int | None
    concurrent_sessions: int | None
    max_idle: float | None
    warm_cache: float | str | None
    router: str | Sequence[str] | None
    kv_tiers: str | Iterable[str] | Mapping[str, Any] | None
    sequence_parallel: bool | None
    decode_context_parallel_size: int | None
    micro_batches: int | None
    overlap: float | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    lora_adapters: int | None
    enable_chunked_prefill: bool | None
    cpu_offload_gb: float | None
    norm_dtype: str | None
    kv_offloading_backend: str | None
    enable_hierarchical_cache: bool | None
    hicache_ratio: float | None
    hicache_size: float | None
    hicache_write_policy: str | None
    hicache_storage_backend: str | None
    attention: str | None
    fusion: bool | None
    host_profile: str | None
    max_model_len: int | None
    max_cudagraph_capture_size: int | None
    max_prefill_cudagraph_capture_size: int | None
    block_size: int | None
    batch_size: int | None
    prefix_tier: str | None
    beam_width: int | None
    turns: str | Sequence[tuple[int, int]] | None
    images: str | tuple[int, int, int] | None
    num_inference_steps: int | None
    usecase: str | None


class TrainKwargs(TypedDict, total=False):
    """TrainArgs."""

    engine: str | None
    global_batch_size: int | None
    micro_batch_size: int | None
    seq_len: int | str | Sequence[int] | None
    data_parallel_size: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    sequence_parallel: bool | None
    context_parallel_size: int | None
    cp_comm_type: str | None
    enable_expert_parallel: bool | None
    expert_model_parallel_size: int | None
    expert_tensor_parallel_size: int | None
    decoder_first_pipeline_num_layers: int | None
    decoder_last_pipeline_num_layers: int | None
    account_for_embedding_in_pipeline_split: bool | None
    account_for_loss_in_pipeline_split: bool | None
    pipeline_model_parallel_layout: str | None
    reduce_every_microbatch: bool | None
    interleave: int | None
    zero: int | None
    recompute: str | None
    recompute_modules: str | Sequence[str] | None
    recompute_method: str | None
    recompute_num_layers: int | None
    optimizer: str | None
    precision: str | None
    grad_dtype: str | None
    dropout: bool | None
    cross_entropy_loss_fusion: bool | None
    mtp_num_layers: int | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    fp8_param_gather: bool | None
    cpu_offloading_num_layers: int | None
    packed_sequences: int | None
    cuda_graph_impl: str | None
    moe_flex_dispatcher_backend: str | None
    overlap_moe_expert_parallel_comm: bool | None
    use_transformer_engine_op_fuser: bool | None
    attention: str | None
    efficiency: float | str | Mapping[str, float] | None
    nodes: int | None
    gpus_per_node: int | None
    overlap: float | None
    interconnect: str | None
    routing_skew: float | None
    assume_decoder: bool | None
    hf_token: str | None
    num_gpus: int | None
    tokens: float | None
    gpu_mtbf: float | None
    node_mtbf: float | None
    checkpoint_interval: float | None
    checkpoint_time: float | None
    restart_time: float | None


class TrainSearchKwargs(TypedDict, total=False):
    """TrainSearchArgs."""

    tensor_parallel_size: int | str | Sequence[int] | None
    sequence_parallel: bool | Sequence[bool] | None
    pipeline_parallel_size: int | str | Sequence[int] | None
    interleave: int | str | Sequence[int] | None
    context_parallel_size: int | str | Sequence[int] | None
    data_parallel_size: int | str | Sequence[int] | None
    expert_model_parallel_size: int | str | Sequence[int] | None
    expert_tensor_parallel_size: int | str | Sequence[int] | None
    micro_batch_size: int | str | Sequence[int] | None
    recompute: str | Sequence[str] | None
    zero: int | str | Sequence[int] | None
    engine: str | None
    global_batch_size: int | None
    seq_len: int | str | Sequence[int] | None
    cp_comm_type: str | None
    enable_expert_parallel: bool | None
    decoder_first_pipeline_num_layers: int | None
    decoder_last_pipeline_num_layers: int | None
    account_for_embedding_in_pipeline_split: bool | None
    account_for_loss_in_pipeline_split: bool | None
    pipeline_model_parallel_layout: str | None
    reduce_every_microbatch: bool | None
    recompute_modules: str | Sequence[str] | None
    recompute_method: str | None
    recompute_num_layers: int | None
    optimizer: str | None
    precision: str | None
    grad_dtype: str | None
    dropout: bool | None
    cross_entropy_loss_fusion: bool | None
    mtp_num_layers: int | None
    lora_rank: int | None
    lora_targets: str | Sequence[str] | None
    fp8_param_gather: bool | None
    cpu_offloading_num_layers: int | None
    packed_sequences: int | None
    cuda_graph_impl: str | None
    moe_flex_dispatcher_backend: str | None
    overlap_moe_expert_parallel_comm: bool | None
    use_transformer_engine_op_fuser: bool | None
    attention: str | None
    efficiency: float | str | Mapping[str, float] | None
    nodes: int | None
    gpus_per_node: int | None
    overlap: float | None
    interconnect: str | None
    routing_skew: float | None
    assume_decoder: bool | None
    hf_token: str | None
    num_gpus: int | None
    tokens: float | None
    gpu_mtbf: float | None
    node_mtbf: float | None
    checkpoint_interval: float | None
    checkpoint_time: float | None
    restart_time: float | None


class ProfileKwargs(TypedDict, total=False):
    """ProfileArgs."""

    num_layers: int | None
    hardware: str | None
    mode: str | None
    warmup: int | None
    repeat: int | None
    prefill_max: int | None
    decode_max: int | None
    step: int | None
    hf_token: str | None
    calibrate: bool | None
    scaling_num_layers: int | None
    scaling_input_min: int | None
    scaling_input_max: int | None
    scaling_input_step: int | None
    scaling_repeat: int | None
    force: bool | None
