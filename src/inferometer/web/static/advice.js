// Sentences of the CLI with its flags as buttons: "fits with -tp 2 or -q fp8" is one click away.
import { given } from "./api.js";
import { h } from "./dom.js";
import { setPlan, state } from "./state.js";

const SHORT = {
  "-tp": "tensor_parallel_size",
  "-pp": "pipeline_parallel_size",
  "-dp": "data_parallel_size",
  "-q": "quantization",
  "-dcp": "decode_context_parallel_size",
  "-sp": "sequence_parallel",
  "-cp": "context_parallel_size",
  "-ep": "expert_model_parallel_size",
  "-etp": "expert_tensor_parallel_size",
};
const FLAG = /(^|\s)(--?[a-z][a-z-]*)(?:\s+([A-Za-z0-9][\w.\/-]*[A-Za-z0-9]|[0-9]))?/g;

function controlOfFlag(flag, controls) {
  const name = SHORT[flag] ?? flag.replace(/^-+/, "").replaceAll("-", "_");
  return controls.find((c) => c.name === name);
}

// The parts of a sentence; those that are a flag of a control with a value become buttons, which apply it.
export function advice(sentence, { controls = state.controls, apply = setPlan } = {}) {
  const parts = [];
  let at = 0;
  for (const match of sentence.matchAll(FLAG)) {
    const [whole, space, flag, value] = match;
    const control = controlOfFlag(flag, controls);
    if (given || !control || (control.kind !== "switch" && !value)) continue;
    const isSwitch = control.kind === "switch";
    const chosen = isSwitch ? true : control.kind === "number" ? Number(value) : value;
    if (control.kind === "number" && Number.isNaN(chosen)) continue;
    parts.push(sentence.slice(at, match.index) + space);
    const text = isSwitch ? flag : `${flag} ${value}`;
    parts.push(
      h(
        "button",
        {
          type: "button",
          class: "apply",
          title: `Try it: ${control.label} = ${chosen}`,
          onclick: () => apply({ [control.name]: chosen }),
        },
        text,
      ),
    );
    at = match.index + space.length + (isSwitch ? flag.length : whole.length - space.length);
  }
  parts.push(sentence.slice(at));
  return parts;
}
