// The figures above the tabs, the memory bar and the sentence; what a plan that cannot work needs; what is pinned.
import { copy, find, h, show } from "./dom.js";
import { bytes, change, percent } from "./format.js";
import { given } from "./api.js";
import { advice } from "./advice.js";
import { band } from "./band.js";
import { tilesOf } from "./kind.js";
import { meant } from "./notices.js";
import { labelOf, remedyButtons } from "./remedies.js";
import { differences, on, setPinned, replacePlan, state } from "./state.js";

const WHEN = { memory: "if it fitted", layout: "if it ran" };

// "▼ −35.5%": the arrow is the sign's, the colour says whether that is good; screen readers hear it.
function delta(now, before, { text, less }) {
  const moved = state.before && change(now, before);
  if (!moved) return null;
  const same = moved === "±0%";
  const verdict = same ? "" : now < before === Boolean(less) ? "better" : "worse";
  return h(
    "span",
    { class: `delta ${verdict}`, title: `pinned: ${text(before)}` },
    `${same ? "" : now > before ? "▲ " : "▼ "}${moved}`,
    verdict && h("span", { class: "unseen" }, ` (${verdict})`),
  );
}

// Under the value: the same plan at the speed of light, what it rests on, or the condition of a figure that cannot be.
function below({ key, text, light, basis }) {
  const { infeasibility, roofline } = state.report;
  const bound = light ? light(state.report) : roofline[key];
  const title = "Lower bound: the same plan with every kernel at its roofline";
  if (infeasibility) return h("span", { class: "light" }, WHEN[infeasibility.kind]);
  if (basis) return h("span", { class: "light" }, basis(state.report));
  return h("span", bound ? { class: "light", title } : { class: "light" }, bound ? `roofline ${text(bound)}` : "");
}

function tile(one) {
  const { key, label, help, text, error } = one;
  const value = state.report.metrics[key];
  const expected = state.report.feasible && state.report.expected_error?.[error];
  return h(
    "div",
    { class: "tile", title: help, "data-metric": key },
    h("dt", {}, label, band(expected)),
    h("dd", {}, h("span", { class: "value" }, text(value)), below(one), delta(value, state.before?.metrics[key], one)),
  );
}

const PARTS = [
  ["weights", "weights"],
  ["kv_cache", "KV cache"],
  ["activation", "activations"],
  ["overhead", "overhead"],
];

function memoryBar(memory, label) {
  const end = Math.max(memory.total_bytes, memory.capacity_bytes);
  const fits = memory.total_bytes <= memory.usable_bytes;
  const share = percent(memory.total_bytes / memory.usable_bytes, 0);
  const caption = `${label}${bytes(memory.total_bytes)} of ${bytes(memory.usable_bytes)} usable per GPU (${share})`;
  return h(
    "div",
    { class: "membar" },
    h("span", { class: fits ? "" : "over" }, caption),
    h(
      "div",
      { class: "bar", role: "img", "aria-label": caption },
      PARTS.map(([key, word]) =>
        h("i", {
          class: key,
          style: `width:${(memory[`${key}_bytes`] / end) * 100}%`,
          title: `${word} ${bytes(memory[`${key}_bytes`])}`,
        }),
      ),
      h("b", { style: `left:${(memory.usable_bytes / end) * 100}%`, title: `usable ${bytes(memory.usable_bytes)}` }),
    ),
  );
}

function pinRow() {
  if (given) return null;
  if (!state.pinned) {
    return h(
      "button",
      {
        type: "button",
        id: "pin",
        title: "Keep these figures and see how every change compares",
        onclick: () => setPinned({ ...state.plan }),
      },
      "Pin and compare",
    );
  }
  const changed = differences(state.pinned, state.plan);
  return h(
    "div",
    { class: "pinned" },
    h("span", { class: "pinword" }, "Pinned"),
    changed.length
      ? changed.map((d) =>
          h("span", { class: "word" }, `${labelOf(d.name)} `, h("s", {}, d.before), ` → `, h("b", {}, d.now)),
        )
      : h("span", { class: "word" }, "the same plan: change a setting to compare"),
    h(
      "button",
      {
        type: "button",
        onclick: () => {
          const now = { ...state.plan };
          const then = state.pinned;
          Object.assign(state, { pinned: now, before: null });
          replacePlan(then);
        },
      },
      "Swap",
    ),
    h("button", { type: "button", id: "unpin", onclick: () => setPinned(null) }, "Unpin"),
  );
}

function problem() {
  const wont = state.report && !state.report.feasible;
  if (!state.refused && !wont) return null;
  const back =
    state.worked &&
    h(
      "button",
      { type: "button", class: "retreat", onclick: () => replacePlan(state.worked) },
      "Back to the last feasible plan",
    );
  if (state.refused)
    return h(
      "div",
      { class: "problem", role: "alert", id: "refused" },
      h("b", {}, "Invalid plan:  "),
      advice(state.refused.message),
      meant(state.refused.suggestions.map((one) => ({ text: one, changes: { [state.refused.control]: one } }))),
      remedyButtons(state.refused.remedies),
      back,
    );
  const { reason, infeasibility } = state.report;
  return h(
    "div",
    { class: "problem", role: "alert", id: "infeasible" },
    h("b", {}, "Infeasible:  "),
    given || !infeasibility.remedies.length ? reason : infeasibility.problem,
    remedyButtons(infeasibility.remedies),
    back,
  );
}

const head = ({ model, plan, device, engine }) =>
  [
    model.name,
    `${plan.gpus} × ${device.label}`,
    `${engine.label} ${engine.version}`.trim(),
    model.quantization.mlp ?? model.dtype,
  ].join(" · ");

// What is left of the tiles on tabs that are about more than this plan.
function folded(report) {
  const figures = tilesOf(report)
    .filter(({ main }) => main)
    .map(({ key, label, text }) => `${label} ${text(report.metrics[key])}`);
  const says = report.feasible ? `this plan: ${figures.join(" · ")}` : "this plan is infeasible";
  return h("span", { class: "folded" }, says);
}

export function startHeadline() {
  const place = find("headline");
  const draw = () => {
    const { report } = state;
    place.classList.toggle("stale", Boolean(state.refused));
    if (!report) return show(place, problem());
    document.title = `${report.model.name} on ${report.plan.gpus} × ${report.device.name} · inferometer`;
    show(
      place,
      h(
        "div",
        { class: "what" },
        h("p", {}, head(report), folded(report)),
        h(
          "div",
          { class: "acts" },
          pinRow(),
          h(
            "button",
            {
              type: "button",
              id: "copy-command",
              title: report.command,
              onclick: () => copy(report.command, "command"),
            },
            "Copy command",
          ),
        ),
      ),
      problem(),
      h("dl", { class: `tiles${report.feasible ? "" : " wont"}` }, tilesOf(report).map(tile)),
      h(
        "div",
        { class: "bars" },
        memoryBar(report.memory, ""),
        state.before && memoryBar(state.before.memory, "pinned: "),
      ),
      report.summary && h("p", { class: "summary" }, advice(report.summary)),
      report.warnings.map((w) => h("p", { class: "warning" }, w)),
    );
  };
  on("answer", draw);
  on("plan", (detail) => (detail.pin || detail.fresh) && draw());
}
