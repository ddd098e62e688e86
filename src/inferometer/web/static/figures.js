// The figures of the GPU, each editable: what if it had twice the bandwidth? As `--gpu name:key=value` of the CLI.
import { h, show } from "./dom.js";
import { digits } from "./format.js";
import { setPlan, state } from "./state.js";

const FIGURES = [
  ["memory", "Memory", 1e9, "GB"],
  ["memory_bandwidth", "Memory bandwidth", 1e12, "TB/s"],
  ["flops.bf16", "bf16", 1e12, "TFLOP/s"],
  ["flops.fp8", "fp8", 1e12, "TFLOP/s"],
  ["link", "", 1e9, "GB/s"],
  ["power", "Power", 1, "W"],
  ["price_per_hour", "Price", 1, "$/hour"],
];

// Where a figure stands in the answer: link is the one that joins the GPUs of the plan.
function figuresOf(device) {
  return FIGURES.map(([key, label, scale, unit]) => {
    if (key !== "link")
      return { key, label, scale, unit, value: key.split(".").reduce((at, word) => at?.[word], device) };
    const name = state.report?.plan.interconnect ?? device.interconnect;
    return { key: `links.${name}.bandwidth`, label: name, scale, unit, value: device.links?.[name]?.bandwidth };
  }).filter((figure) => Number.isFinite(figure.value));
}

function change(key, value) {
  const figures = { ...(state.plan.gpu_figures ?? {}) };
  if (value === null) delete figures[key];
  else figures[key] = value;
  setPlan({ gpu_figures: Object.keys(figures).length ? figures : null });
}

export function figuresEditor() {
  const rows = h("div", { class: "figures" });
  const title = h("summary", {}, "Specifications of this GPU");
  const element = h("details", { class: "inner" }, title, rows);
  let drawn = "";
  return {
    element,
    refresh() {
      const device = state.report?.device;
      if (!device) return;
      const changed = state.plan.gpu_figures ?? {};
      const shown = figuresOf(device);
      const now = JSON.stringify([shown, changed]);
      if (now === drawn || (rows.contains(document.activeElement) && drawn === "")) return;
      drawn = now;
      if (Object.keys(changed).length) element.open = true;
      show(
        rows,
        shown.map(({ key, label, scale, unit, value }) => {
          const id = `f-${key.replaceAll(".", "-")}`;
          const field = h("input", {
            id,
            type: "number",
            step: "any",
            min: "0",
            value: Number(digits(value / scale, 5).replaceAll(",", "")),
            onchange: () =>
              change(key, field.value === "" ? null : Number((Number(field.value) * scale).toPrecision(12))),
          });
          return h(
            "div",
            { class: key in changed ? "figure changed" : "figure" },
            h("label", { for: id }, label),
            field,
            h("span", { class: "unit" }, unit),
            key in changed &&
              h(
                "button",
                {
                  type: "button",
                  class: "back",
                  "aria-label": `${label}: back to the catalogue's figure`,
                  onclick: () => change(key, null),
                },
                "↺",
              ),
          );
        }),
      );
    },
  };
}
