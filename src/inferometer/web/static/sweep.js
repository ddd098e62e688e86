// Tab: any axis against any figure, one line per value of a second axis; what does not fit is marked.
import { latest, post, Refused } from "./api.js";
import { withModel } from "./request.js";
import { chart, halfDecades } from "./chart.js";
import { form } from "./form.js";
import { digits, spaced } from "./format.js";
import { setPlan, state } from "./state.js";
import { palette } from "./theme.js";

const FIGURES = [
  ["tpot_ms", "TPOT (ms)"],
  ["ttft_ms", "TTFT (ms)"],
  ["e2el_ms", "end to end (ms)"],
  ["output_throughput", "output tokens/s"],
  ["output_throughput_per_gpu", "output tokens/s per GPU"],
  ["output_throughput_per_user", "output tokens/s per user"],
  ["total_token_throughput", "total tokens/s"],
  ["prefill_throughput", "prefill tokens/s"],
  ["cost_per_million_output_tokens", "$ per M output tokens"],
  ["joules_per_output_token", "J per output token"],
  ["kv_cache_bytes", "KV cache (bytes)"],
  ["total_bytes", "memory (bytes)"],
];
const DEFAULT_VALUES = {
  batch_size: "1:256:x2",
  input_len: "128:65536:x2",
  output_len: "16:4096:x2",
  tensor_parallel_size: "1,2,4,8",
  pipeline_parallel_size: "1,2,4",
  data_parallel_size: "1,2,4,8",
  quantization: "bf16,fp8",
  kv_cache_dtype: "bf16,fp8",
  gpu: "a100-sxm-80gb,h100-sxm,h200,b200",
  engine: "vllm,sglang,trtllm",
  model: "llama-3.1-8b,llama-3.1-70b",
};
const most = (c) =>
  c.kind === "number" && Number.isFinite(c.least)
    ? `${c.least || 1}:${c.most}:${c.step === "x2" || !c.step ? "x2" : c.step}`
    : (c.choices ?? []).slice(0, 4).join(",");
const valuesFor = (name) => DEFAULT_VALUES[name] ?? most(state.controls.find((c) => c.name === name) ?? {});
// Lines that lie on each other are drawn once: [[value, [values of the same line]]]
function distinct(lines, figures) {
  const kept = [];
  for (const value of lines) {
    const own = figures(value);
    const twin = kept.find(
      ([, , theirs]) =>
        theirs.length === own.length &&
        theirs.every((v, i) => v === own[i] || Math.abs(v - own[i]) <= 1e-3 * Math.abs(v)),
    );
    if (twin) twin[1].push(value);
    else kept.push([value, [], own]);
  }
  return kept;
}

const axes = () => state.controls.filter((c) => c.kind !== "switch").map((c) => [c.name, c.label]);

export const sweepView = {
  id: "sweep",
  label: "Sweep",
  asks: true,
  mount(host) {
    let [answer, before] = [null, null]; // of the plan, and of the pinned one
    const ask = form(
      "sweep",
      [
        { name: "axis", label: "Axis", kind: "choice", value: "batch_size", choices: axes },
        {
          name: "values",
          label: "Values",
          kind: "text",
          value: () => valuesFor(state.view.sweep_axis ?? "batch_size"),
          title: "1,2,4 or 16:8000:16 by step or 1:1024:x2 by ratio; names separated by commas",
        },
        {
          name: "by",
          label: "One line per",
          kind: "choice",
          value: "tensor_parallel_size",
          choices: () => [["none", "–"], ...axes()],
        },
        {
          name: "lines",
          label: "Values of the lines",
          kind: "text",
          value: () => valuesFor(state.view.sweep_by ?? "tensor_parallel_size"),
        },
        { name: "y", label: "Figure", kind: "choice", value: "tpot_ms", choices: () => FIGURES },
        {
          name: "against",
          label: "Against",
          kind: "choice",
          value: "axis",
          choices: () => [["axis", "the axis"], ...FIGURES],
        },
      ],
      {
        button: "Sweep",
        run: () => go(),
        changed(name) {
          if (name === "axis") reset("values", "axis");
          if (name === "by") reset("lines", "by");
          if (["y", "against"].includes(name)) draw();
          else go();
        },
      },
    );
    function reset(field, from) {
      delete state.view[`sweep_${field}`];
      ask.inputs[field].input.value = valuesFor(ask.value(from));
    }
    host.append(ask.element);
    const one = chart(host, {
      name: "sweep",
      title: "",
      height: 470,
      command: () => answer?.command ?? "",
      onpick: (point) => point.customdata && setPlan(point.customdata),
    });

    const send = latest(
      (body, pinned) =>
        Promise.all([
          post("/api/sweep", body),
          pinned && post("/api/sweep", { ...body, plan: pinned }).catch(() => null),
        ]),
      ({ value, error }) => {
        if (error && !(error instanceof Refused)) throw error;
        ask.refuse(error?.message);
        if (value) [answer, before] = value;
        draw();
      },
      host,
    );
    function go() {
      const wanted = { [ask.value("axis")]: ask.value("values") };
      if (ask.value("by") !== "none" && ask.value("by") !== ask.value("axis"))
        wanted[ask.value("by")] = ask.value("lines");
      const cleared = (plan) => {
        const args = withModel(plan);
        if ("gpu" in wanted) delete args.gpu_figures;
        if ("model" in wanted) delete args.config;
        return args;
      };
      send({ plan: cleared(state.plan), axes: wanted }, state.pinned && cleared(state.pinned));
    }

    function draw() {
      if (!answer) return;
      const p = palette();
      const [axis, by, y, against] = ["axis", "by", "y", "against"].map(ask.value);
      const { columns } = answer;
      const size = answer.points;
      const at = (name, i) => (columns[name] ? columns[name][i] : answer.constants?.[name]);
      const rows = Array.from({ length: size }, (_, i) => i);
      const x = (i) => (against === "axis" ? at(axis, i) : at(against, i));
      const lines = [...new Set(rows.map((i) => (by in columns && by !== axis ? columns[by][i] : "")))];
      const label = (name) => state.controls.find((c) => c.name === name)?.label ?? spaced(name);
      const named = (key) => FIGURES.find(([k]) => k === key)?.[1] ?? label(key);
      const pick = (i) => ({ [axis]: at(axis, i), ...(by in columns ? { [by]: at(by, i) } : {}) });
      const colors = [p.blue, p.vermillion, p.green, p.orange, p.purple, p.sky, p.grey, p.ink];
      const pointsOf = (value) => rows.filter((i) => lines.length === 1 || columns[by][i] === value);
      const shown = distinct(lines, (value) =>
        pointsOf(value).flatMap((i) => [x(i), at(y, i), at("feasible", i) === false ? 0 : 1]),
      );
      const traces = shown.flatMap(([value, same], k) => {
        const points = pointsOf(value);
        const name =
          (value === "" ? named(y) : `${label(by)} ${value}`) + (same.length ? ` (same line: ${same.join(", ")})` : "");
        const base = {
          type: "scatter",
          x: points.map(x),
          line: { color: colors[k % colors.length], width: 2 },
          customdata: points.map(pick),
        };
        const text = points.map(
          (i) =>
            `<b>${label(axis)} ${at(axis, i)}</b>${value === "" ? "" : ` · ${label(by)} ${value}`}<br>` +
            `${named(y)} ${digits(at(y, i))}` +
            (against === "axis" ? "" : `<br>${named(against)} ${digits(x(i))}`) +
            (at("feasible", i) === false ? `<br>${at("reason", i) ?? "infeasible"}` : ""),
        );
        return [
          {
            ...base,
            mode: "lines+markers",
            name,
            hoverinfo: "text",
            hovertext: text,
            connectgaps: false,
            marker: { size: 7, color: colors[k % colors.length] },
            y: points.map((i) => (at("feasible", i) === false ? null : at(y, i))),
          },
          {
            ...base,
            mode: "markers",
            name: `${name}: infeasible`,
            showlegend: false,
            hoverinfo: "text",
            hovertext: text,
            marker: { size: 8, symbol: "x-thin-open", color: colors[k % colors.length], line: { width: 1.6 } },
            y: points.map((i) => (at("feasible", i) === false ? at(y, i) : null)),
          },
        ];
      });
      if (before) {
        const then = (name, i) => (before.columns[name] ? before.columns[name][i] : before.constants?.[name]);
        shown.forEach(([value], k) => {
          const points = Array.from({ length: before.points }, (_, i) => i).filter(
            (i) => lines.length === 1 || before.columns[by]?.[i] === value,
          );
          traces.push({
            type: "scatter",
            mode: "lines",
            name: "pinned",
            legendgroup: "pinned",
            showlegend: k === 0,
            x: points.map((i) => then(against === "axis" ? axis : against, i)),
            y: points.map((i) => (then("feasible", i) === false ? null : then(y, i))),
            line: { color: colors[k % colors.length], width: 1.4, dash: "4px,4px" },
            hovertemplate: "pinned %{y:.4~g}<extra></extra>",
          });
        });
      }
      const here = x(0);
      if (state.report && against === "axis" && state.report.metrics[y] != null && typeof here === "number") {
        const now = state.plan[axis] ?? state.controls.find((c) => c.name === axis)?.default;
        if (typeof now === "number")
          traces.push({
            type: "scatter",
            mode: "markers",
            name: "this plan",
            x: [now],
            y: [state.report.metrics[y]],
            marker: { size: 13, symbol: "circle-open", color: p.ink, line: { width: 2 } },
            hoverinfo: "name",
          });
      }
      const samePinned = () => {
        const [now, then] = [columns[y], before.columns[y]];
        return now?.length > 0 && now.length === then?.length && now.every((v, i) => v === then[i]);
      };
      // The smallest and the largest of what works, and where.
      const extremes = () => {
        const able = rows.filter((i) => at("feasible", i) !== false && typeof at(y, i) === "number");
        if (!able.length) return "";
        const where = (i) =>
          `${digits(at(y, i))} at ${label(axis).toLowerCase()} ${at(axis, i)}` +
          (lines.length > 1 ? `, ${label(by).toLowerCase()} ${at(by, i)}` : "");
        const sorted = [...able].sort((a, b) => at(y, a) - at(y, b));
        return ` · ${named(y)} from ${where(sorted[0])} to ${where(sorted.at(-1))}`;
      };
      const numbers = rows.map(x).filter((v) => typeof v === "number");
      const wide = numbers.length && Math.min(...numbers) > 0 && Math.max(...numbers) / Math.min(...numbers) > 20;
      const ys = rows.map((i) => at(y, i)).filter((v) => v > 0);
      const tall = ys.length > 0 && Math.max(...ys) / Math.min(...ys) > 20;
      const bad = rows.filter((i) => at("feasible", i) === false).length;
      one.draw(
        traces,
        {
          xaxis: {
            title: against === "axis" ? `${label(axis)}` : named(against),
            type: numbers.length ? (wide ? "log" : "linear") : "category",
            ...(wide && against === "axis" && new Set(numbers).size < 16
              ? { tickvals: [...new Set(numbers)], ticktext: [...new Set(numbers)].map((v) => digits(v, 6)) }
              : {}),
          },
          yaxis: {
            title: named(y),
            type: tall ? "log" : "linear",
            rangemode: "tozero",
            ...(tall ? halfDecades(Math.min(...ys) / 1.3, Math.max(...ys) * 1.3, (v) => digits(v)) : {}),
          },
          hovermode: "closest",
        },
        rows.map((i) => Object.fromEntries(Object.keys(columns).map((name) => [name, columns[name][i]]))),
        {
          title: `${named(y)} against ${against === "axis" ? label(axis).toLowerCase() : named(against)}`,
          note:
            `${digits(size, 6)} points` +
            extremes() +
            (before && samePinned() ? " · the pinned plan has the same lines" : "") +
            (bad ? ` · × ${digits(bad, 6)} infeasible (hover to see why)` : "") +
            " · click a point to make it the plan",
        },
      );
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
