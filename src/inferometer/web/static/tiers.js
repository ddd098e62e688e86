// The KV cache's tiers over time: how much each holds, and what goes over its link to the tier above.
import { chart } from "./chart.js";
import { digits } from "./format.js";
import { palette } from "./theme.js";

export const TIERS = { gpu: "GPU", cpu: "CPU memory", disk: "disk", shared: "shared store" };

const PARTS = 64; // of the run, in which traffic is a mean

const COLORS = { gpu: "grey", cpu: "purple", disk: "green", shared: "sky" };

// Mean bytes a second in equal parts of the run, from totals at some times.
function rates(times, totals, end) {
  const at = (time) => totals[times.findLastIndex((one) => one <= time)] ?? 0;
  const edges = Array.from({ length: PARTS + 1 }, (_, n) => (end * n) / PARTS);
  const sums = edges.map(at);
  const each = sums.slice(1).map((sum, n) => (sum - sums[n]) / (end / PARTS || 1));
  return { edges, each: [...each, each.at(-1)] };
}

// tiersChart(host, command) -> { draw(run) }
export function tiersChart(host, command) {
  const one = chart(host, { name: "tiers", title: "The cache's tiers over time", height: 340, command });
  return {
    draw(run) {
      const series = run?.tier_series;
      one.element.hidden = !series?.time_s;
      if (one.element.hidden) return;
      const p = palette();
      const end = run.replay.end_s;
      const line = (x, y, name, color, yaxis, unit, more = {}) => ({
        type: "scatter",
        mode: "lines",
        name,
        x,
        y,
        yaxis,
        line: { color, width: 1.6, shape: "hv", ...more },
        hovertemplate: `${name} %{y:.3~g} ${unit}<extra></extra>`,
      });
      const tiers = run.kv_tiers.map((tier) => ({ ...tier, label: TIERS[tier.name] ?? tier.name }));
      const held = tiers.map((tier) => {
        const bytes = series[`${tier.name}_used_bytes`].map((v) => v / 2 ** 30);
        return line(series.time_s, bytes, `${tier.label} holds`, p[COLORS[tier.name]], "y", "GiB");
      });
      const moved = tiers.slice(1).flatMap((tier) =>
        [
          ["loaded", p.vermillion, {}],
          ["stored", p.blue, { dash: "5px,3px" }],
        ].map(([what, color, more]) => {
          const { edges, each } = rates(series.time_s, series[`${tier.name}_${what}_bytes`], end);
          const gigabytes = each.map((v) => v / 1e9);
          return line(edges, gigabytes, `${what}, ${tier.label}`, color, "y2", "GB/s", more);
        }),
      );
      const most = tiers.slice(1).map((tier) => `${tier.label} ${digits(tier.capacity_bytes / 2 ** 30)} GiB`);
      one.draw(
        [...held, ...moved],
        {
          xaxis: { title: "seconds", anchor: "y2", range: [0, end] },
          yaxis: { domain: [0.5, 1], title: "GiB held", rangemode: "tozero" },
          yaxis2: { domain: [0, 0.38], title: "GB/s", rangemode: "tozero", nticks: 4 },
          hovermode: "x",
        },
        series.time_s.map((_, i) => Object.fromEntries(Object.keys(series).map((key) => [key, series[key][i]]))),
        {
          title: "The cache's tiers over time",
          note: `of all replicas: ${most.join(", ")}; traffic is the mean of each ${PARTS}th of the run`,
        },
      );
    },
  };
}
