// How wrong predictions are, by engine and GPU: what a reader wants to know first, and of this plan before all others.
import { h } from "./dom.js";
import { digits, percent } from "./format.js";
import { state } from "./state.js";
import { palette, tint } from "./theme.js";

const FEW = 30; // measured runs below which a median says little
const STEPS = [
  [0.05, "green", 0.3],
  [0.1, "green", 0.14],
  [0.2, "orange", 0.2],
  [Infinity, "vermillion", 0.24],
];

const shade = (share) => {
  const [, name, much] = STEPS.find(([end]) => share <= end);
  return `background:${tint(palette()[name], much)}`;
};

// Engine and GPU of the plan on the left, as the tables call them.
function planOf() {
  const { engine, device } = state.report ?? {};
  return engine && device ? { engine: engine.name, label: engine.label, gpu: device.name } : null;
}

function ofThisPlan(engines) {
  const plan = planOf();
  if (!plan) return null;
  const name = `${plan.label} on ${plan.gpu}, as in this plan`;
  const own = engines[plan.engine]?.[plan.gpu];
  if (!own)
    return h(
      "p",
      {},
      h("b", {}, name),
      ": no such server was measured; see the nearest ones below.",
    );
  return h(
    "p",
    {},
    h("b", {}, name),
    `: TPOT is off by ${percent(own.tpot)} and TTFT by ${percent(own.ttft)} in the median of ${own.runs} measured runs`,
    own.runs < FEW ? ", which are few." : ".",
  );
}

function cell(own, here) {
  if (!own) return h("td", { class: "none" }, "–");
  const few = own.runs < FEW ? " few" : "";
  return h(
    "td",
    { class: `${here ? "here" : ""}${few}`, style: shade(own.tpot) },
    h("b", {}, percent(own.tpot)),
    h("small", {}, `TTFT ${percent(own.ttft)}`),
    h("small", {}, `${own.runs} runs`),
  );
}

function errorMap(engines, labels) {
  const gpus = [...new Set(Object.values(engines).flatMap((byGpu) => Object.keys(byGpu)))].sort();
  const plan = planOf();
  return h(
    "div",
    { class: "table errors", tabindex: "0", role: "region", "aria-label": "Median error by engine and GPU" },
    h(
      "table",
      {},
      h("caption", {}, "Median error of TPOT on measured servers, by engine and GPU"),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "engine"),
          gpus.map((gpu) => h("th", { scope: "col" }, gpu)),
        ),
      ),
      h(
        "tbody",
        {},
        Object.entries(engines).map(([engine, byGpu]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, labels[engine] ?? engine),
            gpus.map((gpu) => cell(byGpu[gpu], plan?.engine === engine && plan?.gpu === gpu)),
          ),
        ),
      ),
    ),
  );
}

// The first thing on the Accuracy tab: [sentences, table]
export function errorSummary({ engines, all }) {
  const labels = Object.fromEntries(state.catalogue.engines.map((one) => [one.name, one.label ?? one.name]));
  return [
    h(
      "p",
      { class: "first" },
      `Predicted TPOT is off by ${percent(all.tpot)}, TTFT by ${percent(all.ttft)}: the median of ` +
        `${digits(all.runs, 7)} runs on real servers.`,
    ),
    ofThisPlan(engines),
    errorMap(engines, labels),
  ];
}
