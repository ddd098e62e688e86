// Sessions as lanes: when each agent's turns wait for their first token and answer; between them tools and people.
import { chart } from "./chart.js";
import { digits, percent } from "./format.js";
import { palette } from "./theme.js";

const ROW = 17; // pixels of a lane
const LEGEND = 96; // pixels above and below the lanes

const label = (session, agent) => (agent ? `${session} · sub-agent ${agent}` : session);

// lanesChart(host, command) -> { draw(run) }
export function lanesChart(host, command) {
  const one = chart(host, { name: "sessions", title: "Sessions as lanes", height: 300, command });
  return {
    draw(run) {
      const lanes = run?.lanes;
      one.element.hidden = !lanes?.start_s.length;
      if (one.element.hidden) return;
      const p = palette();
      const names = lanes.session.map((session, i) => label(lanes.names[session], lanes.agent[i]));
      const order = [...new Set(names)].reverse();
      const about = lanes.start_s.map(
        (_, i) =>
          `turn ${lanes.turn[i] + 1}: ${digits(lanes.input_tokens[i], 7)} + ` +
          `${digits(lanes.output_tokens[i], 7)} tokens, ` +
          `${percent(lanes.cached_tokens[i] / lanes.input_tokens[i])} from the cache`,
      );
      const bars = (name, from, to, color) => ({
        type: "bar",
        orientation: "h",
        name,
        y: names,
        base: from,
        x: to.map((end, i) => Math.max(0, end - from[i])),
        text: about,
        textposition: "none",
        marker: { color },
        hovertemplate: `%{y}, %{text}<br>${name}: %{x:.3~g} s<extra></extra>`,
      });
      const { start_s: start, first_token_s: first, finished_s: finished } = lanes;
      const height = LEGEND + ROW * order.length;
      one.draw(
        [bars("until the first token", start, first, p.orange), bars("answers", first, finished, p.blue)],
        {
          barmode: "overlay",
          bargap: 0.25,
          xaxis: { title: "seconds", range: [0, run.replay.end_s] },
          yaxis: { categoryorder: "array", categoryarray: order, ticks: "", automargin: true },
        },
        start.map((time, i) => ({ lane: names[i], turn: lanes.turn[i], start_s: time, first_token_s: first[i] })),
        {
          title: "Sessions as lanes",
          height,
          note:
            `${digits(lanes.shown, 5)} of ${digits(run.sessions.sessions, 7)} sessions; in the gaps tools run, ` +
            "people think and sub-agents are waited for",
        },
      );
    },
  };
}
