// The figures that matter most, in a slim bar that stays in sight when the headline is scrolled away.
import { find, h, show } from "./dom.js";
import { bytes, change } from "./format.js";
import { tilesOf } from "./kind.js";
import { on, state } from "./state.js";

const OTHER = ["search", "simulate", "training", "accuracy"]; // tabs that do not show the plan's report
const MEMORY = { label: "Memory", text: bytes, less: true, value: (report) => report.memory.total_bytes };
const figuresOf = (report) => [...tilesOf(report).filter(({ main, less }) => main && less), MEMORY];

function figure({ key, label, text, less, value = (report) => report.metrics[key] }) {
  const [now, then] = [value(state.report), state.before && value(state.before)];
  const moved = then && change(now, then);
  const mood = !moved || moved === "±0%" ? "" : now < then === Boolean(less) ? "better" : "worse";
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
    title: "Back to the top",
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
