// Tab: what moves the plan. A tornado of the machine's figures, a tenth up and a tenth down; and what a target needs.
import { latest, post, Refused } from "./api.js";
import { withModel } from "./request.js";
import { advice } from "./advice.js";
import { chart, halfDecades } from "./chart.js";
import { form, table } from "./form.js";
import { h, show } from "./dom.js";
import { digits, milliseconds, si } from "./format.js";
import { setPlan, state } from "./state.js";
import { palette } from "./theme.js";

const PANELS = [
  ["ttft_ms", "TTFT"],
  ["tpot_ms", "TPOT"],
  ["full_output_throughput", "tokens/s at the largest batch"],
];
const signed = (share) => `${share > 0 ? "+" : "−"}${Math.abs(share * 100).toFixed(1)}%`;

export const sensitivityView = {
  id: "sensitivity",
  label: "Sensitivity",
  asks: true,
  mount(host) {
    let [answer, before] = [null, null];
    const ask = form(
      "sens",
      [
        {
          name: "target",
          label: "Target (optional)",
          kind: "text",
          value: "",
          placeholder: "tpot:5 or ttft:200",
          title: "Value that each figure alone needs to reach it: tpot:20 (ms), ttft, e2el, throughput, cost, energy",
        },
      ],
      { button: "Find", run: () => go(), changed: () => go() },
    );
    const said = h("div", { class: "sentences" });
    host.append(ask.element, said);
    const place = h("div", { hidden: true }); // until there is something to show
    host.append(place);
    const one = chart(place, {
      name: "tornado",
      title: "Sensitivity to hardware figures",
      height: 420,
      command: () => answer?.command ?? "",
      onpick: (point) => point.customdata && twist(point.customdata),
    });
    const lines = chart(place, {
      name: "curves",
      title: "Each figure from a quarter to sixteen times its value",
      height: 360,
      command: () => answer?.command ?? "",
    });
    const below = h("div", {});
    host.append(below);

    // A bar is a plan, too: that figure, times its factor.
    function twist({ key, factor }) {
      const figure = answer.figures[key];
      if (figure.of !== "hardware" || !figure.value || key === "flops" || key.startsWith("all")) return;
      setPlan({ gpu_figures: { ...(state.plan.gpu_figures ?? {}), [key]: figure.value * factor } });
    }

    const send = latest(
      (body, pinned) =>
        Promise.all([
          post("/api/sensitivity", body),
          pinned && post("/api/sensitivity", { plan: withModel(pinned) }).catch(() => null),
        ]),
      ({ value, error }) => {
        if (error && !(error instanceof Refused)) throw error;
        ask.refuse(error?.message);
        if (value) [answer, before] = value;
        draw();
      },
      host,
    );
    const go = () =>
      send(
        { plan: withModel(state.plan), curves: true, ...(ask.value("target") ? { target: ask.value("target") } : {}) },
        state.pinned,
      );

    // The figure that moves a metric most, in words.
    function strongest(figures, key, word) {
      const size = ([, f]) => Math.abs(f.up.change[key] ?? 0);
      const [, most] = figures.reduce((best, one) => (size(one) > size(best) ? one : best), figures[0] ?? [null, null]);
      return most ? ` · ${word}: most with ${most.label} (${signed(most.up.change[key] ?? 0)} with 10% more)` : "";
    }

    function tornado() {
      const p = palette();
      const fields = PANELS.filter(([key]) => answer.metrics[key] !== null && answer.metrics[key] !== undefined);
      const effect = (f) =>
        Math.max(...fields.flatMap(([key]) => [Math.abs(f.up.change[key] ?? 0), Math.abs(f.down.change[key] ?? 0)]));
      const figures = Object.entries(answer.figures)
        .filter(([, f]) => f.used && !f.within && effect(f) > 5e-4)
        .sort((a, b) => effect(b[1]) - effect(a[1]))
        .slice(0, 10)
        .reverse();
      const labels = figures.map(([, f]) => f.label);
      const narrow = one.box.clientWidth < 560;
      const text = (now, pinned) => {
        const shown = (share) => (Math.abs(share ?? 0) > 5e-4 ? signed(share) : "0%");
        if (pinned !== undefined && Math.abs(pinned ?? 0) > 5e-4) return `${shown(now)} (${shown(pinned)})`;
        return Math.abs(now ?? 0) > 5e-4 ? signed(now) : "";
      };
      const traces = fields.flatMap(([key], i) =>
        [
          ["up", "10% more", p.blue],
          ["down", "10% less", p.orange],
        ].map(([way, name, color]) => ({
          type: "bar",
          orientation: "h",
          name,
          legendgroup: way,
          showlegend: i === 0,
          y: labels,
          x: figures.map(([, f]) => (f[way].change[key] ?? 0) * 100),
          xaxis: `x${i ? i + 1 : ""}`,
          yaxis: `y${narrow && i ? i + 1 : ""}`,
          marker: { color },
          text: figures.map(([k, f]) => text(f[way].change[key], before?.figures?.[k]?.[way].change[key])),
          textposition: "outside",
          cliponaxis: false,
          textfont: { size: 10.5 },
          customdata: figures.map(([k, f]) => ({ key: k, factor: f[way].factor })),
          hoverinfo: "text",
          hovertext: figures.map(([, f]) => `${f.label} × ${f[way].factor}: ${signed(f[way].change[key] ?? 0)}`),
        })),
      );
      const reach = Math.max(10, ...figures.map(([, f]) => effect(f) * 100)) * (before ? 2.2 : 1.45);
      const wide = 1 / fields.length;
      const across = (i) => (narrow ? [0, 1] : [i * wide + (i ? 0.015 : 0), (i + 1) * wide - 0.015]);
      const rows = narrow
        ? Object.fromEntries(
            fields.map((_, i) => [
              `yaxis${i ? i + 1 : ""}`,
              { ticks: "", anchor: `x${i ? i + 1 : ""}`, domain: [1 - (i + 1) * wide + 0.07, 1 - i * wide] },
            ]),
          )
        : { yaxis: { ticks: "" } };
      const axes = Object.fromEntries(
        fields.map(([key, word], i) => [
          `xaxis${i ? i + 1 : ""}`,
          {
            domain: across(i),
            anchor: `y${narrow && i ? i + 1 : ""}`,
            range: [-reach, reach],
            ticksuffix: "%",
            nticks: 5,
            title: {
              text: `${word} · ${(key.endsWith("_ms") ? milliseconds : digits)(answer.metrics[key])}`,
            },
          },
        ]),
      );
      one.draw(
        traces,
        { ...axes, ...rows, barmode: "overlay", bargap: 0.28, margin: { l: 60, r: 12, t: 10, b: 50 } },
        figures.flatMap(([k, f]) =>
          ["up", "down"].map((way) => ({ figure: k, label: f.label, factor: f[way].factor, ...f[way].change })),
        ),
        {
          note:
            "each hardware figure 10% up and down; click a bar to try it" +
            (before ? " · in parentheses: of the pinned plan" : "") +
            fields.map(([key, word]) => strongest(figures, key, word)).join(""),
          height: 130 + figures.length * 32 * (narrow ? fields.length : 1) + (narrow ? 110 : 0),
        },
      );
    }

    // What two times the best figure does to each latency.
    function twice(fields) {
      return fields
        .map(([key, word]) => {
          const doubled = (k) => answer.curves[k][key][answer.curves[k].factor.indexOf(2)] ?? Infinity;
          const best = Object.keys(answer.curves).reduce((least, k) => (doubled(k) < doubled(least) ? k : least));
          const moved = signed(doubled(best) / answer.metrics[key] - 1);
          return ` · twice the ${answer.figures[best].label}: ${word} ${moved}`;
        })
        .join("");
    }

    function curves() {
      const p = palette();
      const keys = Object.keys(answer.curves ?? {});
      lines.element.hidden = !keys.length;
      if (!keys.length) return;
      const fields = PANELS.slice(0, 2).filter(([key]) => answer.metrics[key] != null);
      const span = (list) => {
        const known = list.filter((v) => v);
        return known.length ? Math.max(...known) / Math.min(...known) : 1;
      };
      const widest = (k) => Math.max(...fields.map(([key]) => span(answer.curves[k][key])));
      const strong = keys
        .filter((k) => widest(k) > 1.02)
        .sort((a, b) => widest(b) - widest(a))
        .slice(0, 6);
      const moves = (k, key) => span(answer.curves[k][key]) > 1.02; // flat lines would hide each other
      const colors = [p.blue, p.vermillion, p.green, p.orange, p.purple, p.sky];
      const traces = fields.flatMap(([key], i) =>
        strong
          .filter((k) => moves(k, key))
          .map((k) => ({
            type: "scatter",
            mode: "lines+markers",
            marker: { size: 4 },
            name: answer.figures[k].label,
            legendgroup: k,
            showlegend: fields.findIndex(([other]) => moves(k, other)) === i,
            x: answer.curves[k].factor,
            y: answer.curves[k][key],
            line: { color: colors[strong.indexOf(k)], width: 2 },
            xaxis: `x${i ? 2 : ""}`,
            yaxis: `y${i ? 2 : ""}`,
            hovertemplate: `${answer.figures[k].label} × %{x}: %{y:.4~g} ms<extra></extra>`,
          })),
      );
      const level = (key) => {
        const all = strong.flatMap((k) => answer.curves[k][key]).filter((v) => v);
        return { type: "log", ...halfDecades(Math.min(...all) / 1.3, Math.max(...all) * 1.3, (v) => digits(v)) };
      };
      const ticks = {
        type: "log",
        tickvals: [0.25, 0.5, 1, 2, 4, 8, 16],
        ticktext: ["¼", "½", "1", "2", "4", "8", "16"],
      };
      const narrow = lines.box.clientWidth < 560;
      const [left, right] = narrow
        ? [{ domain: [0, 1] }, { domain: [0, 1] }]
        : [{ domain: [0, 0.46] }, { domain: [0.55, 1] }];
      const [upper, lower] = narrow && fields[1] ? [{ domain: [0.58, 1] }, { domain: [0, 0.42] }] : [{}, {}];
      lines.draw(
        traces,
        {
          xaxis: { ...ticks, ...left, anchor: "y", title: "factor on the current figure" },
          yaxis: { ...level(fields[0][0]), ...upper, title: `${fields[0][1]} (ms)` },
          ...(fields[1]
            ? {
                xaxis2: { ...ticks, ...right, anchor: "y2", title: "factor on the current figure" },
                yaxis2: { ...level(fields[1][0]), ...lower, anchor: "x2", title: `${fields[1][1]} (ms)` },
              }
            : {}),
        },
        strong.flatMap((k) =>
          answer.curves[k].factor.map((factor, i) => ({
            figure: k,
            factor,
            ttft_ms: answer.curves[k].ttft_ms[i],
            tpot_ms: answer.curves[k].tpot_ms[i],
          })),
        ),
        { note: `where more of a figure stops helping${twice(fields)}`, height: narrow ? 640 : 360 },
      );
    }

    function targets() {
      show(
        below,
        Object.entries(answer.targets ?? {}).map(([word, target]) =>
          table(
            `${word.toUpperCase()} ≤ ${target.limit}${target.metric.endsWith("_ms") ? " ms" : ""}: ` +
              (target.holds ? "holds already" : `now ${digits(target.now)}`),
            ["figure alone", "status", "factor", "value", "best reachable"],
            Object.entries(target.figures)
              .filter(([, s]) => s.status !== "never" || s.best < target.now * 0.995)
              .map(([key, s]) => ({
                cells: [
                  answer.figures[key]?.label ?? key,
                  s.status,
                  s.factor ? `×${digits(s.factor)}` : "–",
                  s.value ? si(s.value, answer.figures[key]?.unit ?? "") : "–",
                  s.best ? digits(s.best) : "–",
                ],
              })),
          ),
        ),
      );
    }

    function draw() {
      if (!answer) return;
      show(
        said,
        h("p", {}, advice(String(answer.summary ?? ""))),
        !answer.feasible && answer.reason && h("p", { class: "problem" }, advice(answer.reason)),
        (answer.warnings ?? []).map((w) => h("p", { class: "warning" }, w)),
      );
      place.hidden = !Object.keys(answer.figures ?? {}).length;
      if (!place.hidden) {
        tornado();
        curves();
      }
      targets();
    }
    let seen = null;
    return {
      draw() {
        ask.refresh();
        const now = JSON.stringify([state.plan, state.pinned]);
        if (now !== seen) go();
        else draw();
        seen = now;
      },
    };
  },
};
