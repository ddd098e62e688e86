// Changes that make a plan work, as buttons. Each was tried by the server; null takes an argument back to its default.
import { given } from "./api.js";
import { h } from "./dom.js";
import { digits } from "./format.js";
import { setPlan, state } from "./state.js";

const LABELS = { config: "config.json", gpu_figures: "GPU figures" };

// labelOf("tensor_parallel_size") "Tensor parallel"
export const labelOf = (name) => state.controls.find((c) => c.name === name)?.label ?? LABELS[name] ?? name;

const said = (name, value) =>
  value === null
    ? `Reset ${labelOf(name)}`
    : value === true
      ? labelOf(name)
      : `${labelOf(name)} ${typeof value === "number" ? digits(value, 9) : value}`;

const inWords = (change) =>
  Object.entries(change)
    .map(([name, value]) => said(name, value))
    .join(", ");

function button(change) {
  const whole = "gpu" in change ? { gpu_figures: null, ...change } : change;
  return h(
    "button",
    { type: "button", class: "apply", title: "Try it", onclick: () => setPlan(whole) },
    inWords(change),
  );
}

export function remedyButtons(remedies) {
  if (given || !remedies?.length) return null;
  return h("span", { class: "remedies" }, h("span", {}, "Try:"), remedies.map(button));
}
