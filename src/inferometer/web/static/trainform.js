// The arguments of training as a form, from the schema's controls. trainForm(…).training() is what the server gets.
import { form } from "./form.js";
import { h } from "./dom.js";
import { setPlan, setView, state } from "./state.js";

const FIRST = [
  "tensor_parallel_size",
  "pipeline_parallel_size",
  "data_parallel_size",
  "context_parallel_size",
  "expert_model_parallel_size",
  "interleave",
  "sequence_parallel",
  "zero",
  "global_batch_size",
  "micro_batch_size",
  "seq_len",
  "recompute",
  "precision",
  "tokens",
];
const LABELS = { expert_model_parallel_size: "Expert parallel", enable_expert_parallel: "Experts over all ranks" };

// What stands in the form when nothing was set yet, and other plans to begin with.
const START = { pipeline_parallel_size: 4, data_parallel_size: 2, zero: 1, global_batch_size: 16, seq_len: 4096 };
const EXAMPLES = [
  [
    "Llama 3.1 70B on 128 GPUs",
    { model: "llama-3.1-70b", gpu: "h100-sxm" },
    {
      tensor_parallel_size: 8,
      pipeline_parallel_size: 4,
      data_parallel_size: 4,
      sequence_parallel: "on",
      zero: 1,
      global_batch_size: 128,
      seq_len: 8192,
      tokens: 1e12,
    },
  ],
  [
    "GPT-3 175B, interleaved",
    { model: "gpt-3-175b", gpu: "a100-sxm-80gb" },
    {
      tensor_parallel_size: 8,
      pipeline_parallel_size: 8,
      interleave: 3,
      sequence_parallel: "on",
      global_batch_size: 64,
      precision: "fp16",
    },
  ],
  [
    "Qwen3 30B-A3B, experts over 8 GPUs",
    { model: "qwen3-30b-a3b", gpu: "h200" },
    { data_parallel_size: 16, expert_model_parallel_size: 8, zero: 1, global_batch_size: 64, seq_len: 4096 },
  ],
];

export const trainingControls = () => state.catalogue.training ?? [];
const key = (name) => `train_${name}`;
const isSet = () => Object.keys(state.view).some((name) => name.startsWith("train_") && name !== "train_stage");

function field(control) {
  const { name, label, unit, help, flag, choices, kind } = control;
  const about = { name, label: LABELS[name] ?? label, unit, title: `${help} (CLI: ${flag})` };
  if (kind === "switch")
    return {
      ...about,
      kind: "choice",
      value: control.default ? "on" : "off",
      choices: () => ["off", "on"].map((one) => [one, one]),
    };
  if (kind === "choice") {
    const free = control.default === null ? [["", control.default_text || "default"]] : [];
    return { ...about, kind, value: control.default ?? "", choices: () => [...free, ...choices.map((c) => [c, c])] };
  }
  return { ...about, kind, value: control.default ?? "", placeholder: control.default_text || "none", least: 0 };
}

// Change fields as if they had been typed; null takes one back to its default.
export const setTraining = (changes) =>
  setView(
    Object.fromEntries(
      Object.entries(changes).map(([name, value]) => [
        key(name),
        value === true ? "on" : value === false ? "off" : value === null ? null : String(value),
      ]),
    ),
  );

function begin([, plan, changes]) {
  const all = Object.fromEntries(trainingControls().map(({ name }) => [name, changes[name] ?? null]));
  setTraining(all);
  setPlan({ config: null, gpu_figures: null, ...plan });
}

// trainForm(changed) -> { element, examples, training(), refresh(), refuse() }
export function trainForm(changed) {
  const controls = trainingControls();
  if (!isSet()) setView(Object.fromEntries(Object.entries(START).map(([n, v]) => [key(n), String(v)])), true);
  const byName = Object.fromEntries(controls.map((control) => [control.name, control]));
  const others = controls.map(({ name }) => name).filter((name) => !FIRST.includes(name));
  const order = [...FIRST.filter((name) => byName[name]), ...others];
  const ask = form(
    "train",
    order.map((name) => field(byName[name])),
    { run: changed, changed },
  );
  const labels = others.map((name) => ask.inputs[name].input.closest("label"));
  const rest = h("details", { class: "inner" }, h("summary", {}, "More"), h("div", {}, labels));
  rest.open = others.some((name) => state.view[key(name)] !== undefined);
  ask.element.querySelector(".wrong").before(rest);
  const examples = h(
    "p",
    { class: "examples" },
    "Examples: ",
    EXAMPLES.map((one) => h("button", { type: "button", onclick: () => begin(one) }, one[0])),
  );
  const typed = ({ name, kind, choices, default: standard }) => {
    const text = ask.value(name);
    if (text === "" || text === String(standard ?? "")) return null;
    if (kind === "switch") return text === "on" === Boolean(standard) ? null : text === "on";
    return (kind === "number" || /^\d+$/.test(choices[0] ?? "")) && text !== "" ? Number(text) : text;
  };
  return {
    ...ask,
    examples,
    training: () =>
      Object.fromEntries(controls.map((one) => [one.name, typed(one)]).filter(([, value]) => value !== null)),
    mark(name) {
      for (const [one, { input }] of Object.entries(ask.inputs)) {
        if (one === name) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
      }
    },
  };
}
