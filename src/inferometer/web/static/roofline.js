// Tab: every operator under the roofs, log-log; dashed, the best that measured kernels of this plan reach.
import { chart, decades } from "./chart.js";
import { h } from "./dom.js";
import { capital, digits, percent, seconds, si } from "./format.js";
import { keyOf } from "./phases.js";
import { reached, tops } from "./ceilings.js";
import { setView, state } from "./state.js";
import { boundColor, boundWords, palette } from "./theme.js";

const dotted = (ops) => ops.filter((op) => op.flops > 0 && op.bytes > 0 && op.seconds > 0);
const area = (share) => 7 + 40 * Math.sqrt(share);

// Operators that a chart of intensity cannot show, and their share of the time.
function withoutDot(ops) {
  if (!ops.length) return "";
  const names = [...new Set(ops.map((op) => op.name))].slice(0, 3).join(", ");
  return ` · no arithmetic, so no dot: ${names} (${percent(ops.reduce((sum, op) => sum + op.share, 0))})`;
}

function line(x, y, name, extra = {}) {
  return {
    x,
    y,
    mode: "lines",
    type: "scatter",
    hoverinfo: "text",
    text: name,
    name,
    showlegend: false,
    line: { color: palette().ink, width: 1.5, ...extra },
  };
}

// Names where there is room: the largest dots first, above, below or beside; none where four places are taken.
function named(ops, box, [x0, x1], [y0, y1]) {
  const [wide, high] = [(box.clientWidth - 90) / Math.log10(x1 / x0), (box.clientHeight - 110) / Math.log10(y1 / y0)];
  const at = (x, y) => [Math.log10(x) * wide, Math.log10(y) * high];
  const [[left], [right, top]] = [at(x0, y0), at(x1, y1)];
  const taken = tops(state.report).map((roof) => {
    const [, y] = at(1, roof.flops);
    return [right - 130, y - 3, right, y + 16];
  });
  const [, foot] = at(1, x0 * state.report.device.memory_bandwidth);
  taken.push([left + 38, foot + 12, left + 160, foot + 32]); // the memory ceiling's own label
  const positions = new Map();
  const places = ["top center", "bottom center", "middle right", "middle left"];
  for (const op of [...ops].sort((a, b) => b.share - a.share)) {
    if (op.share < 0.005) continue;
    const [[x, y], r, w] = [at(op.intensity, op.flops / op.seconds), area(op.share) / 2, op.name.length * 6.4];
    const boxes = [
      [x - w / 2, y + r, x + w / 2, y + r + 14],
      [x - w / 2, y - r - 14, x + w / 2, y - r],
      [x + r, y - 7, x + r + w, y + 7],
      [x - r - w, y - 7, x - r, y + 7],
    ];
    const free = boxes.findIndex(
      (a) =>
        a[0] > left &&
        a[2] < right &&
        a[3] < top &&
        !taken.some((b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]),
    );
    taken.push([x - r, y - r, x + r, y + r]);
    if (free < 0) continue;
    taken.push(boxes[free]);
    positions.set(op, places[free]);
  }
  return positions;
}

function dots(ops, phase, hollow, names) {
  return [...new Set(ops.map((op) => op.bound))].map((bound) => {
    const group = ops.filter((op) => op.bound === bound);
    return {
      type: "scatter",
      mode: hollow ? "markers" : "markers+text",
      name: hollow ? `pinned: ${boundWords(bound)}` : boundWords(bound),
      x: group.map((op) => op.intensity),
      y: group.map((op) => op.flops / op.seconds),
      text: group.map((op) => (names.has(op) ? op.name : "")),
      textposition: group.map((op) => names.get(op) ?? "top center"),
      textfont: { size: 11, color: palette().ink },
      customdata: hollow ? null : group.map((op) => keyOf(op, state.report.phases[phase].ops)),
      hoverinfo: "text",
      hovertext: group.map(
        (op) =>
          `<b>${op.name}</b>${hollow ? " (pinned)" : ""}<br>` +
          `${digits(op.intensity)} FLOP/B, ${si(op.flops / op.seconds, "FLOP/s")}<br>` +
          `${percent(op.share)} of ${phase}, ${seconds(op.seconds)}<br>` +
          `efficiency ${percent(op.efficiency)}, ${op.origin}`,
      ),
      marker: {
        size: group.map((op) => area(op.share)),
        color: boundColor(bound),
        opacity: hollow ? 0.9 : 0.75,
        symbol: hollow ? "circle-open" : "circle",
        line: { color: hollow ? boundColor(bound) : palette().paper, width: hollow ? 1.5 : 0.8 },
      },
      showlegend: !hollow,
    };
  });
}

export const rooflineView = {
  id: "roofline",
  label: "Roofline",
  mount(host) {
    const place = h("div", { class: "two" });
    host.append(place);
    const charts = new Map();
    return {
      draw() {
        const { report } = state;
        const p = palette();
        const roofs = tops(report);
        const band = report.device.memory_bandwidth;
        const best = reached(report);
        const phases = Object.keys(report.phases);
        for (const [name, one] of charts)
          if (!phases.includes(name)) {
            one.element.remove();
            charts.delete(name);
          }
        const every = phases.flatMap((name) => dotted(report.phases[name].ops)).filter((op) => op.share > 1e-4);
        const peak = roofs[0]?.flops ?? 1;
        const xs = [...every.map((op) => op.intensity), peak / band];
        const [x0, x1] = [Math.min(...xs) / 3, Math.max(...xs) * 12];
        const ys = [...every.map((op) => op.flops / op.seconds), peak];
        const [y0, y1] = [Math.min(...ys) / 3, peak * 3];
        for (const name of phases) {
          if (!charts.has(name)) {
            charts.set(
              name,
              chart(place, {
                name: `roofline-${name}`,
                title: "",
                height: 470,
                onpick: (point) => point.customdata && setView({ tab: null, phase: name, op: point.customdata }),
              }),
            );
          }
        }
        for (const name of phases) {
          const ops = dotted(report.phases[name].ops);
          const names = named(ops, charts.get(name).box, [x0, x1], [y0, y1]);
          const old = dotted(state.before?.phases[name]?.ops ?? []);
          const lines = [
            line([x0, peak / band], [x0 * band, peak], `memory ${si(band, "B/s")}`),
            ...roofs.map((r) => line([r.flops / band, x1], [r.flops, r.flops], `${r.name} ${si(r.flops, "FLOP/s")}`)),
          ];
          const dash = { dash: "6px,4px", width: 1.2, color: p.muted };
          const knee = best.bandwidth && (best.flops?.rate ?? peak) / best.bandwidth.rate;
          if (best.bandwidth)
            lines.push(
              line(
                [x0, knee],
                [x0 * best.bandwidth.rate, knee * best.bandwidth.rate],
                `reached by ${best.bandwidth.name}: ${si(best.bandwidth.rate, "B/s")} (${best.bandwidth.origin})`,
                dash,
              ),
            );
          if (best.flops)
            lines.push(
              line(
                [best.flops.rate / (best.bandwidth?.rate ?? band), x1],
                [best.flops.rate, best.flops.rate],
                `reached by ${best.flops.name}: ${si(best.flops.rate, "FLOP/s")} (${best.flops.origin})`,
                dash,
              ),
            );
          const marks = roofs.map((r) => ({
            x: Math.log10(x1),
            y: Math.log10(r.flops),
            text: `${r.name} ${si(r.flops, "FLOP/s")}`,
            showarrow: false,
            xanchor: "right",
            yanchor: "bottom",
            font: { size: 11, color: p.ink },
          }));
          marks.push({
            x: Math.log10(x0),
            y: Math.log10(x0 * band),
            text: `memory ${si(band, "B/s")}`,
            showarrow: false,
            xanchor: "left",
            yanchor: "bottom",
            font: { size: 11, color: p.ink },
            xshift: 40,
            yshift: 16,
          });
          const missing = report.phases[name].ops.filter((op) => op.seconds > 0 && !(op.flops > 0 && op.bytes > 0));
          charts.get(name).draw(
            [...lines, ...dots(old, name, true, new Map()), ...dots(ops, name, false, names)],
            {
              xaxis: {
                type: "log",
                title: "arithmetic intensity (FLOP/byte)",
                range: [Math.log10(x0), Math.log10(x1)],
                ...decades(x0, x1, (v) => digits(v)),
              },
              yaxis: {
                type: "log",
                title: "FLOP/s reached",
                range: [Math.log10(y0), Math.log10(y1)],
                ...decades(y0, y1, (v) => si(v)),
              },
              annotations: marks,
              hovermode: "closest",
            },
            ops.map((op) => ({
              phase: name,
              operator: op.name,
              block: op.block,
              intensity: op.intensity,
              flops_per_second: op.flops / op.seconds,
              share: op.share,
              bound: op.bound,
              efficiency: op.efficiency,
              origin: op.origin,
            })),
            {
              title: `${capital(name)} · ${seconds(report.phases[name].seconds)}`,
              note:
                "area: share of the time · dashed: best rates of measured or fitted kernels here" +
                (old.length ? " · hollow: pinned" : "") +
                withoutDot(missing),
            },
          );
        }
      },
    };
  },
};
