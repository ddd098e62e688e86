// Tab: how right it is. Predicted against measured, as shipped with this version: trust is a screen.
import { get, Refused } from "./api.js";
import { chart, halfDecades } from "./chart.js";
import { table } from "./form.js";
import { h, show } from "./dom.js";
import { digits, percent, spaced } from "./format.js";
import { setView, state } from "./state.js";
import { palette } from "./theme.js";

const SIGNS = [
  "circle",
  "square",
  "diamond",
  "cross",
  "triangle-up",
  "x",
  "star",
  "pentagon",
  "hexagon",
  "triangle-down",
];
const MARKS = ["●", "■", "◆", "✚", "▲", "✖", "★", "⬟", "⬢", "▼"]; // the same as letters, for the legend
const TITLES = {
  "steps-shared": "Rows that figures were chosen with",
  "steps-left-out": "The same, chosen anew without the model",
  "steps-own": "Our own rows",
  "kernels-own": "Shapes that the fit has not seen, error in %",
  kernels: "Public kernel tables, error in %",
  collectives: "Collectives, error in %: median / p90",
};
const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const head = (label) =>
  label
    .split(",")[0]
    .replace(/^\d[\d-]*\s/, "")
    .replace(/(_| tp).*/, ""); // the model of a row's name

// Points of a section by what they are: [{ what, unit, points: [{ set, label, model, measured, predicted }] }]
function grouped(data, section) {
  const sectionOf = (set) =>
    data.tables.find((t) => t.name === set)?.section ??
    data.tables.find((t) => t.name.split("-")[0] === set.split("-")[0])?.section;
  const byQuantity = new Map();
  for (const q of data.points ?? []) {
    if (sectionOf(q.set) !== section) continue;
    const group = byQuantity.get(q.what) ?? { what: q.what, unit: q.unit, points: [] };
    byQuantity.set(q.what, group);
    q.labels.forEach((label, i) =>
      group.points.push({ set: q.set, label, model: head(label), measured: q.measured[i], predicted: q.predicted[i] }),
    );
  }
  return [...byQuantity.values()].filter((group) => group.points.length > 1);
}

export const accuracyView = {
  id: "accuracy",
  label: "Accuracy",
  asks: true,
  alone: true,
  folds: true,
  mount(host) {
    let data = null;
    const said = h("div", { class: "sentences" }, h("p", { class: "note" }, "Reading the shipped figures …"));
    const bar = h("div", { class: "bar-of-view" });
    const legend = h("ul", { class: "legend" });
    const place = h("div", { class: "two" });
    const below = h("div", {});
    host.append(said, bar, legend, place, below);
    let charts = new Map();
    get("/api/accuracy").then(
      (answer) => {
        data = answer;
        draw();
      },
      (error) => {
        if (!(error instanceof Refused)) throw error;
        show(said, h("p", { class: "problem" }, error.message));
      },
    );

    function against({ what, unit, points }, models, colors) {
      const p = palette();
      if (!charts.has(what))
        charts.set(
          what,
          chart(place, {
            name: `accuracy-${what.replace(/\W+/g, "-").toLowerCase()}`,
            title: what,
            height: 380,
            command: () => "python benchmarks/accuracy.py",
          }),
        );
      const all = points.flatMap((q) => [q.predicted, q.measured]).filter((v) => v > 0);
      const [low, high] = [Math.min(...all) / 1.3, Math.max(...all) * 1.3];
      const band = (f, dash) => ({
        type: "scatter",
        mode: "lines",
        x: [low, high],
        y: [low * f, high * f],
        line: { color: p.muted, width: 1, dash },
        hoverinfo: "skip",
        showlegend: false,
      });
      const traces = [
        band(1, "solid"),
        band(1.1, "dot"),
        band(1 / 1.1, "dot"),
        ...models.map((model, k) => {
          const rows = points.filter((q) => q.model === model);
          return {
            type: "scatter",
            mode: "markers",
            name: model,
            x: rows.map((q) => q.measured),
            y: rows.map((q) => q.predicted),
            marker: { size: 7, color: colors[k % colors.length], symbol: SIGNS[k % SIGNS.length], opacity: 0.8 },
            hoverinfo: "text",
            hovertext: rows.map(
              (q) =>
                `<b>${q.label}</b> · ${q.set}<br>` +
                `measured ${digits(q.measured)} ${unit}, predicted ${digits(q.predicted)} ${unit}<br>` +
                `${q.predicted >= q.measured ? "+" : "−"}${percent(Math.abs(q.predicted / q.measured - 1))}`,
            ),
          };
        }),
      ];
      const ticks = () => ({
        type: "log",
        range: [Math.log10(low), Math.log10(high)],
        ...halfDecades(low, high, (v) => digits(v)),
      });
      const errors = points.map((q) => Math.abs(q.predicted / q.measured - 1));
      charts.get(what).draw(
        traces,
        {
          xaxis: { ...ticks(), title: `measured${unit ? ` (${unit})` : ""}` },
          yaxis: { ...ticks(), title: `predicted${unit ? ` (${unit})` : ""}` },
          hovermode: "closest",
          showlegend: false,
        },
        points,
        {
          note:
            `${points.length} points: median error ${percent(median(errors))}, ` +
            `mean ${percent(mean(errors))}; dotted: 10% off`,
        },
      );
    }

    function draw() {
      if (!data) return;
      const sections = [...new Set(data.tables.map((t) => t.section))];
      const now = sections.includes(state.view.acc_section) ? state.view.acc_section : sections[0];
      show(
        said,
        h(
          "p",
          {},
          "Predicted beside measured, as shipped with this version; which rows a figure was chosen with, " +
            "and what was left out, is said in ",
          h("code", {}, data.page ?? "docs/accuracy.md"),
          ".",
        ),
      );
      show(
        bar,
        h(
          "div",
          { class: "switch", role: "radiogroup", "aria-label": "What was measured" },
          sections.map((name) =>
            h(
              "label",
              {},
              h("input", {
                type: "radio",
                name: "acc",
                value: name,
                checked: name === now,
                onchange: () => {
                  charts.forEach((c) => c.element.remove());
                  charts = new Map();
                  setView({ acc_section: name === sections[0] ? null : name });
                },
              }),
              name,
            ),
          ),
        ),
      );
      const p = palette();
      const groups = grouped(data, now);
      const models = [...new Set(groups.flatMap((group) => group.points.map((q) => q.model)))];
      const colors = [p.blue, p.vermillion, p.green, p.orange, p.purple, p.sky, p.grey, p.ink];
      show(
        legend,
        models.map((model, k) =>
          h(
            "li",
            {},
            h("i", { class: "sign", style: `color:${colors[k % colors.length]}` }, MARKS[k % MARKS.length]),
            model,
          ),
        ),
      );
      for (const group of groups) against(group, models, colors);
      show(
        below,
        data.tables
          .filter((t) => t.section === now)
          .map((t) =>
            table(
              t.about || TITLES[t.name] || spaced(t.name.replaceAll("-", " ")),
              t.columns,
              t.rows.map((cells) => ({ cells })),
            ),
          ),
      );
    }
    return { draw };
  },
};
