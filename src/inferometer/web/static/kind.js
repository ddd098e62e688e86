// What a kind of model is asked for: the figures of its tiles, words for its phases, the controls that count for it.
// The report says which kind it is (model.kind, model.vision), never a name.
import { figure, milliseconds, money } from "./format.js";
import { state } from "./state.js";

const watts = ({ metrics }) => (metrics.watts_per_gpu ? `${figure(metrics.watts_per_gpu)} W per GPU` : "");

const TOKENS = [
  {
    key: "ttft_ms",
    label: "TTFT",
    help: "Time to first token: prefill of the whole batch",
    error: "ttft",
    text: milliseconds,
    less: true,
    main: true,
  },
  {
    key: "tpot_ms",
    label: "TPOT",
    help: "Time per output token while decoding",
    error: "tpot",
    text: milliseconds,
    less: true,
    main: true,
  },
  {
    key: "e2el_ms",
    label: "End to end",
    help: "From the request to the last token",
    error: "e2el",
    text: milliseconds,
    less: true,
  },
  { key: "output_throughput", label: "Output tokens/s", help: "All sequences together", text: figure },
  {
    key: "output_throughput_per_gpu",
    label: "Tokens/s per GPU",
    help: "Output tokens/s over the GPUs used",
    text: figure,
    main: true,
  },
  {
    key: "cost_per_million_output_tokens",
    label: "$ per M tokens",
    help: "GPU cost per million output tokens",
    text: money,
    less: true,
  },
  {
    key: "joules_per_output_token",
    label: "J per token",
    help: "Energy from the power of idle GPUs, kernels, memory traffic and FLOPs",
    text: figure,
    less: true,
    basis: watts,
  },
];

const IMAGES = [
  {
    key: "image_latency_ms",
    label: "Image latency",
    help: "All denoising steps of a batch of images, which finish together",
    text: milliseconds,
    less: true,
    main: true,
    light: ({ roofline, workload }) => roofline.ttft_ms * workload.num_inference_steps,
  },
  { key: "ttft_ms", label: "Denoising step", help: "One step of the whole batch", text: milliseconds, less: true },
  { key: "images_per_second", label: "Images/s", help: "Of the whole batch", text: figure, main: true },
  {
    key: "cost_per_thousand_images",
    label: "$ per 1,000 images",
    help: "GPU cost per 1,000 images",
    text: money,
    less: true,
  },
  {
    key: "joules_per_image",
    label: "J per image",
    help: "Energy from the power of idle GPUs, kernels, memory traffic and FLOPs",
    text: figure,
    less: true,
    basis: watts,
  },
];

// Controls that count for some models only.
const OF_IMAGES = ["num_inference_steps"];
const OF_VISION = ["images"];
const OF_TOKENS = [
  "beam_width",
  "block_size",
  "decode_context_parallel_size",
  "enable_chunked_prefill",
  "enable_expert_parallel",
  "input_len",
  "kv_cache_dtype",
  "mamba_ssm_cache_dtype",
  "max_model_len",
  "moe_backend",
  "output_len",
  "prefix_len",
  "routing_skew",
  "speculative_config",
  "turns",
  "usecase",
];

export const draws = (model = state.report?.model) => model?.kind === "diffusion";

// The figures above the tabs: [{ key, label, help, text, less, main }]; those that the report has. Where there is
// little room, the main ones stand for all.
export const tilesOf = (report) =>
  (draws(report.model) ? IMAGES : TOKENS).filter(({ key }) => (report.metrics[key] ?? null) !== null);

// phaseWord("prefill") "prefill", of a diffusion model "denoising step"
export const phaseWord = (phase, model) => (draws(model) ? "denoising step" : phase);

// opWord({ name: "host_overhead", kind: "host" }) "host overhead": rows of ours in words, kernels by their own names
export const opWord = (op) => (["host", "wait", "draft"].includes(op.kind) ? op.name.replaceAll("_", " ") : op.name);

// blockWord("layers.0-79") "layers 0–79"
export const blockWord = (block) => block.replace(/\.(?=\d)/, " ").replace(/(\d)-(?=\d)/g, "$1–");

// Whether a control counts for a model of the catalogue or of a report: counts("output_len", report.model)
export function counts(name, model = state.report?.model) {
  if (!model) return true;
  if (OF_IMAGES.includes(name)) return draws(model);
  if (OF_VISION.includes(name)) return Boolean(model.vision ?? model.images);
  return !(draws(model) && OF_TOKENS.includes(name));
}

// What a plan for another model must leave behind: { output_len: null, … }
export const dropped = (model) =>
  Object.fromEntries(
    Object.keys(state.plan)
      .filter((name) => !counts(name, model))
      .map((name) => [name, null]),
  );

// unitOf("batch_size", "sequences") "images" for a model that draws
export const unitOf = (name, unit) => (name === "batch_size" && draws() ? "images" : unit);

// What a control that was not set stands at: the engine is the one that the report was made with.
export const standing = (name, value) =>
  name === "engine" && !(name in state.plan) && state.report ? state.report.engine.name : value;
