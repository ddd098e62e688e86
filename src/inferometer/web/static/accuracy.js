// Tab: how right it is. Predicted against measured, as shipped with this version: trust is a screen.
import { get, Refused } from "./api.js";
import { chart, halfDecades } from "./chart.js";
import { table } from "./form.js";
import { h, show } from "./dom.js";
import { errorSummary } from "./errors.js";
import { capital, digits, percent, spaced } from "./format.js";
import { versus } from "./scoreboard.js";
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
const FIRST = ["Scoreboard", "Summary", "Serving", "Ranking of layouts"]; // what a deployment is chosen by
const LONG = 60; // characters of a cell from which on a table's text is wrapped
const FEWEST = 5; // points of a chart; the tables have all of them
const TITLES = {
  scoreboard: "inferometer and AIConfigurator on the same measured servers",
  "scoreboard-left-out": "The same, with the host's times chosen without that model: one server in eight",
  "scoreboard-parts": "By model, GPU and engine: median / mean error",
  published: "What other tools publish, on their own servers",
  "steps-kinds": "Engine steps on one H200: mean / median error, bias (steps), by how they were judged",
  "summary-servers": "Servers: mean / median error over the runs, bias",
  "summary-others": "Everything else",
  "steps-shared": "Steps that the engine's figures were chosen with: mean error, bias, steps",
  "steps-left-out": "The same, with figures chosen without that model",
  "steps-own": "Our own measurements, not used to fit kernels",
  "steps-more": "More of our own measurements, on other machines",
  memory: "Memory of a GPU: measured beside predicted",
  "left-out": "A GPU predicted from the kernels of other GPUs alone",
  ranking: "Is the best layout picked? Groups of measured layouts, and what a wrong pick costs (regret)",
  "serving-disaggregated-2": "The disaggregated runs, by what they have in common",
  hosts: "TTFT that waits for launches: as shipped, and with the host's times fitted without that model",
  "kernels-own": "Shapes held out of the fit, error in %",
  kernels: "Public kernel tables, error in %",
  collectives: "Collectives, error in %: median / p90",
};
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const ninth = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length * 0.9)];

// The model of a row's name: "llama-3.1-8b fp8, 8 × 1024", "17 Llama-2-7b-hf tp1 chat", "RTX4090_Llama-3.1-8B"
const modelOf = (label) =>
  label.includes(",")
    ? label.split(",")[0]
    : label
        .replace(/^\d[\d-]*\s/, "")
        .replace(/^RTX\d+_/, "")
        .split(/[\s_]/)[0]
        .toLowerCase();

// "h200: vLLM 0.25.1 on one H200." without the name that it had in a document
const titleOf = ({ name, about }) =>
  TITLES[name] ?? (about.replace(/^[\w-]+: /, "").replaceAll("`", "") || capital(spaced(name.replaceAll("-", " "))));

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
      group.points.push({
        set: q.set,
        label,
        model: modelOf(label),
        measured: q.measured[i],
        predicted: q.predicted[i],
      }),
    );
  }
  return [...byQuantity.values()].filter((group) => group.points.length >= FEWEST);
}

export const accuracyView = {
  id: "accuracy",
  label: "Accuracy",
  asks: true,
  alone: true,
  folds: true,
  mount(host) {
    let data = null;
    const said = h("div", { class: "sentences" }, h("p", { class: "note" }, "Loading …"));
    const bar = h("div", { class: "bar-of-view" });
    const legend = h("ul", { class: "legend" });
    const place = h("div", { class: "two" });
    const below = h("div", {});
    const errors = h("div", { class: "sentences" });
    host.append(errors, said, bar, legend, place, below);
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
            title: capital(what),
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
            `${points.length} points: median error ${percent(median(errors))}, 90% below ` +
            `${percent(ninth(errors))}; dotted: 10% off`,
        },
      );
    }

    function beside(parts, metric) {
      const name = `scoreboard-${metric.toLowerCase()}`;
      if (!charts.has(name))
        charts.set(
          name,
          chart(place, { name, title: `${metric}, same servers`, command: () => "python benchmarks/accuracy.py" }),
        );
      const { traces, layout, rows, captions } = versus(parts, metric);
      charts.get(name).draw(traces, layout, rows, captions);
    }

    function drawErrors() {
      show(errors, errorSummary(data.prediction_errors));
    }

    function draw() {
      const named = [...new Set(data.tables.map((t) => t.section))];
      const sections = [...FIRST, ...named.filter((name) => !FIRST.includes(name))];
      drawErrors();
      const now = sections.includes(state.view.acc_section) ? state.view.acc_section : sections[0];
      show(
        said,
        h("h3", {}, "What was measured"),
        h(
          "p",
          { class: "note" },
          "As shipped with this version. Which measurements were used to fit, and which were held out:  ",
          h("code", {}, data.page ?? "docs/accuracy.md"),
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
      const parts = data.tables.find((t) => t.name === "scoreboard-parts");
      if (parts?.section === now) ["TTFT", "TPOT"].forEach((metric) => beside(parts, metric));
      show(
        below,
        data.tables
          .filter((t) => t.section === now)
          .map((t) => {
            const cells = t.rows.map((row) => ({ cells: row.map((cell) => cell.replaceAll("**", "")) }));
            const element = table(titleOf(t), t.columns, cells);
            element.classList.toggle("prose", t.rows.some((row) => row.some((cell) => cell.length > LONG)));
            return element;
          }),
      );
    }
    return {
      draw({ answer } = {}) {
        if (!data) return;
        if (answer)
          drawErrors(); // of what was measured, a plan changes nothing else
        else draw();
      },
    };
  },
};
