// The switch between prefill and decode that several views share.
import { h, show } from "./dom.js";
import { setView, state } from "./state.js";

export function phaseOf(report = state.report) {
  const names = Object.keys(report.phases);
  return names.includes(state.view.phase) ? state.view.phase : names.includes("decode") ? "decode" : names[0];
}

export function phaseSwitch(host) {
  const group = h("div", { class: "switch", role: "radiogroup", "aria-label": "Phase" });
  host.append(group);
  return () => {
    const names = Object.keys(state.report.phases);
    const now = phaseOf();
    if (group.dataset.shown !== `${names}|${now}`) {
      const focused = group.contains(document.activeElement);
      group.dataset.shown = `${names}|${now}`;
      show(
        group,
        names.map((name) =>
          h(
            "label",
            {},
            h("input", {
              type: "radio",
              name: "phase",
              value: name,
              checked: name === now,
              onchange: () => setView({ phase: name, op: null }),
            }),
            name,
          ),
        ),
      );
      if (focused) group.querySelector("input:checked").focus();
    }
  };
}

// An operator by name, for addresses: "layers.0-31/all_reduce", its second in the block "…/all_reduce#2"
export function keyOf(op, ops) {
  const alike = ops.filter((other) => other.name === op.name && other.block === op.block).indexOf(op);
  return `${op.block}/${op.name}${alike > 0 ? `#${alike + 1}` : ""}`;
}
