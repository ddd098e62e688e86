// The figures that matter most, in a slim bar that stays in sight when the headline is scrolled away.
import { find, h, show } from "./dom.js";
import { bytes, change, milliseconds } from "./format.js";
import { on, state } from "./state.js";

const OTHER = ["search", "simulate", "accuracy"]; // tabs that do not show the plan's report
const metric = (key) => (report) => report.metrics[key];
const FIGURES = [
  ["TTFT", milliseconds, metric("ttft_ms")],
  ["TPOT", milliseconds, metric("tpot_ms")],
  ["End to end", milliseconds, metric("e2el_ms")],
  ["Memory", bytes, (report) => report.memory.total_bytes],
];

// Of a model that answers in one step, TTFT and end to end are the same: one of them is enough.
function figuresOf(report) {
  const decodes = metric("tpot_ms")(report) !== null;
  return FIGURES.filter(([label]) => (decodes ? label !== "End to end" : !["TTFT", "TPOT"].includes(label)));
}

function figure([label, text, value]) {
  const [now, then] = [value(state.report), state.before && value(state.before)];
  const moved = then && change(now, then);
  const mood = !moved || moved === "±0%" ? "" : now < then ? "better" : "worse";
  return h(
    "span",
    {},
    h("small", {}, label),
    h("b", {}, text(now)),
    moved && h("i", { class: `delta ${mood}` }, moved),
  );
}

export function startStrip() {
  const place = h("div", {
    class: "strip",
    "aria-hidden": "true",
    title: "Back to the headline",
    onclick: () => scrollTo({ top: 0 }),
  });
  find("tabs").before(place);
  const toggle = () => {
    const away = find("headline").getBoundingClientRect().bottom < find("tabs").offsetHeight + 20;
    const stays = away && state.report && !state.refused && !OTHER.includes(state.view.tab);
    document.body.classList.toggle("stripped", Boolean(stays));
  };
  const draw = () => {
    if (state.report) {
      const { model, plan, device } = state.report;
      const name = `${model.name} on ${plan.gpus} × ${device.name}`;
      show(place, h("span", { class: "name" }, name), figuresOf(state.report).map(figure));
    }
    toggle();
  };
  addEventListener("scroll", toggle, { passive: true });
  addEventListener("resize", toggle, { passive: true });
  on("answer", draw);
  on("view", toggle);
}
