// The switch between prefill and decode that several views share.
import { h, show } from "./dom.js";
import { phaseWord } from "./kind.js";
import { setView, state } from "./state.js";

export function phaseOf(report = state.report) {
  const names = Object.keys(report.phases);
  return names.includes(state.view.phase) ? state.view.phase : names.includes("decode") ? "decode" : names[0];
}

let groups = 0; // radio buttons of one name are one group in the whole document, hidden tabs included

export function phaseSwitch(host) {
  const name = `phase-${++groups}`;
  const group = h("div", { class: "switch", role: "radiogroup", "aria-label": "Phase" });
  host.append(group);
  let shown = "";
  const button = (phase) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name, value: phase, onchange: () => setView({ phase, op: null }) }),
      phaseWord(phase),
    );
  return () => {
    const phases = Object.keys(state.report.phases);
    const key = () => phases.map((phase) => `${phase} ${phaseWord(phase)}`).join();
    if (shown !== key()) {
      const focused = group.contains(document.activeElement);
      shown = key();
      show(group, phases.map(button));
      if (focused) group.querySelector(`[value=${phaseOf()}]`).focus();
    }
    for (const input of group.querySelectorAll("input")) input.checked = input.value === phaseOf();
  };
}

const keys = new WeakMap(); // the operators of a phase -> operator -> key

// An operator by name, for addresses: "layers.0-31/all_reduce", its second in the block "…/all_reduce#2"
export function keyOf(op, ops) {
  if (!keys.has(ops)) {
    const seen = new Map();
    const keyed = (one) => {
      const name = `${one.block}/${one.name}`;
      seen.set(name, (seen.get(name) ?? 0) + 1);
      return [one, seen.get(name) > 1 ? `${name}#${seen.get(name)}` : name];
    };
    keys.set(ops, new Map(ops.map(keyed)));
  }
  return keys.get(ops).get(op) ?? `${op.block}/${op.name}`;
}
