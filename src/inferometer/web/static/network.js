// The network as SVG: a panel per block with its count, operators as boxes (colour: what limits; height: time), edges.
import { s } from "./dom.js";
import { change, percent, seconds, size } from "./format.js";
import { JOIN, laidOut } from "./layout.js";
import { boundColor, palette, tint } from "./theme.js";

const BETWEEN = 46;
const STEM = 14; // an edge goes straight down past the shape beside it, then turns

const text = (x, y, content, extra = {}) =>
  s("text", { x, y, "font-size": 12, fill: palette().ink, ...extra }, content);

function smooth(points) {
  let path = `M${points[0]}`;
  for (let i = 1; i < points.length; i++) {
    const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
    const middle = (y0 + y1) / 2;
    path += x0 === x1 ? `L${x1},${y1}` : `C${x0},${middle} ${x1},${middle} ${x1},${y1}`;
  }
  return path;
}

function arrow(path, { color = palette().muted, dashed = false, head = true, width = 1.3 } = {}) {
  return s("path", {
    d: path,
    fill: "none",
    stroke: color,
    "stroke-width": width,
    "stroke-dasharray": dashed ? "5 4" : null,
    "marker-end": head ? "url(#tip)" : null,
  });
}

function edgePath(block, plan, edge) {
  const [from, to] = [plan.at.get(edge.from), plan.at.get(edge.to)];
  const low = from.y + from.h;
  if (edge.kind === "residual") {
    const lane = plan.left + plan.lane * 0.6;
    const level = to.y + JOIN / 2;
    return `M${from.x},${low + 5}L${lane},${low + 5}L${lane},${level}L${to.x - JOIN / 2 - 4},${level}`;
  }
  const rank = (id) => block.nodes.find((n) => n.id === id).rank;
  if (edge.kind === "cache" && rank(edge.from) === rank(edge.to)) {
    const side = from.x > to.x ? -1 : 1;
    const level = to.y + to.h / 2;
    return `M${from.x + (side * from.w) / 2},${level}L${to.x - side * (to.w / 2 + 4)},${level}`;
  }
  const into = block.edges.filter(
    (e) => e.to === edge.to && e.kind !== "residual" && !(e.kind === "cache" && rank(e.from) === rank(e.to)),
  );
  const x = (e) => plan.bends.get(e)?.at(-1)?.x ?? plan.at.get(e.from).x;
  into.sort((a, b) => x(a) - x(b));
  const port = to.x + (to.w > JOIN ? (into.indexOf(edge) - (into.length - 1) / 2) * 16 : 0);
  const points = [
    [from.x, low],
    [from.x, low + STEM],
  ];
  for (const bend of plan.bends.get(edge) ?? []) points.push([bend.x, bend.y0], [bend.x, bend.y1 + STEM]);
  points.push([port, to.y - (to.w ? 4 : 0)]);
  return smooth(points);
}

const detail = (row) => {
  const word = ["weight", "keys", "state"].find((w) => row.shape[w]);
  return word ? `${word} ${size(row.shape[word])}` : row.kind.replaceAll("_", " ");
};

const took = (row, part, before) =>
  [seconds(row.seconds * part), before && change(row.seconds, before.seconds)].filter(Boolean).join(" ");

function operator(node, row, place, { chosen, before, pick, key }) {
  const p = palette();
  const color = boundColor(row.bound);
  const [x, y, wide] = [place.x - place.w / 2, place.y, place.w];
  const share = row.share * node.part;
  const moved = before ? change(row.seconds, before.seconds) : "";
  const label =
    `${row.name}, ${percent(share)} of the time, ${row.bound}-bound` +
    (moved ? `, ${moved} against the pinned plan` : "");
  const act = (event) => {
    if (event.type === "click" || event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pick(row);
    }
  };
  const middle = y + place.h / 2;
  return s(
    "g",
    {
      class: "op",
      role: "button",
      tabindex: "0",
      "aria-label": label,
      "aria-pressed": String(chosen),
      "data-op": row.name,
      "data-key": key,
      onclick: act,
      onkeydown: act,
    },
    s("rect", {
      x,
      y,
      width: wide,
      height: place.h,
      rx: 6,
      fill: tint(color, chosen ? 0.3 : 0.11),
      stroke: chosen ? color : tint(color, 0.6),
      "stroke-width": chosen ? 2.2 : 1.1,
    }),
    s("rect", { x: x + 1, y: y + 4, width: 4, height: place.h - 8, rx: 2, fill: color }),
    text(x + 13, middle - 3, row.name, { "font-weight": 600, "font-size": 12.5 }),
    text(x + wide - 10, middle - 3, percent(share), { "text-anchor": "end", "font-weight": 600, fill: color }),
    text(x + 13, middle + 12, detail(row), { "font-size": 10, fill: p.muted }),
    text(x + wide - 10, middle + 12, took(row, node.part, before), {
      "font-size": 10,
      fill: p.muted,
      "text-anchor": "end",
    }),
  );
}

function panel(block, plan, rows, options) {
  const p = palette();
  const title = [
    block.letter,
    block.stage === "layer" ? "" : block.name,
    block.layers && (block.stage === "layer" || block.count > 1) ? block.layers : "",
  ]
    .filter(Boolean)
    .join(" · ");
  const parts = [
    s("rect", {
      x: plan.left,
      y: 0,
      width: plan.right - plan.left,
      height: plan.height,
      rx: 10,
      fill: p.panel,
      stroke: p.faint,
    }),
    text(plan.left + 14, 22, title, { "font-weight": 600, "font-size": 13 }),
    text(plan.left + 14, 37, `${percent(block.share)} of the time`, { "font-size": 10.5, fill: p.muted }),
  ];
  if (block.count > 1) {
    const often = `×${block.count}`;
    const w = often.length * 8 + 16;
    parts.push(
      s("rect", { x: plan.right - w - 10, y: 9, width: w, height: 23, rx: 11.5, fill: p.ink }),
      text(plan.right - w / 2 - 10, 25, often, { "text-anchor": "middle", "font-weight": 600, fill: p.paper }),
    );
  }
  for (const edge of block.edges) {
    const leaves = block.nodes.find((n) => n.id === edge.to).kind === "out";
    parts.push(
      arrow(edgePath(block, plan, edge), {
        dashed: edge.kind === "cache",
        color: edge.kind === "residual" ? p.grey : p.muted,
        head: !leaves,
      }),
    );
  }
  const firsts = block.edges
    .filter((e) => block.nodes.find((n) => n.id === e.from).kind === "in")
    .map((e) => block.nodes.find((n) => n.id === e.to));
  const stream = size(
    rows[
      (firsts.find((n) => n.kind === "op" && rows[n.row].kind === "norm") ?? firsts.find((n) => n.kind === "op"))?.row
    ]?.shape.input,
  );
  for (const node of block.nodes) {
    const place = plan.at.get(node.id);
    if (node.kind === "op")
      parts.push(
        operator(node, rows[node.row], place, {
          chosen: options.chosen === rows[node.row],
          before: options.before(rows[node.row]),
          pick: options.pick,
          key: options.key(rows[node.row]),
        }),
      );
    if (node.kind === "sum") {
      const y = place.y + JOIN / 2;
      parts.push(
        s("circle", { cx: place.x, cy: y, r: JOIN / 2, fill: p.paper, stroke: p.ink, "stroke-width": 1.3 }),
        s("path", { d: `M${place.x - 5},${y}h10M${place.x},${y - 5}v10`, stroke: p.ink, "stroke-width": 1.4 }),
      );
    }
    const shape = node.kind === "op" ? size(rows[node.row].shape.output) : node.kind === "out" ? "" : stream;
    if (shape && !node.aside)
      parts.push(
        text(place.x + 7, place.y + place.h + 14, shape, {
          "font-size": 9.5,
          fill: p.muted,
          stroke: p.panel,
          "stroke-width": 3.5,
          "paint-order": "stroke",
          "stroke-linejoin": "round",
        }),
      );
  }
  return parts;
}

// phase: of the graph; rows: the phase's ops; options: { chosen, before(row), pick(row), key(row), wide }
export function network(phase, rows, options) {
  const p = palette();
  const share = (node) => (rows[node.row]?.share ?? 0) * (node.part ?? 1);
  const need = (block) =>
    Math.max(
      ...block.nodes
        .filter((n) => n.kind === "op")
        .map(({ row: i }) => rows[i])
        .map((row) =>
          Math.max(
            row.name.length * 7.6 + 70,
            (detail(row).length + took(row, 1, options.before(row)).length) * 5.7 + 40,
          ),
        ),
      0,
    );
  const panels = phase.blocks.map((block) => ({ block, plan: laidOut(block, share, need(block)) }));
  // Blocks of layers stand side by side where the page is wide enough; the stream runs on downwards.
  const lines = [];
  for (const one of panels) {
    const line = lines.at(-1);
    const used = line?.reduce((sum, q) => sum + q.plan.right - q.plan.left + BETWEEN, 0) ?? Infinity;
    const fits = used + one.plan.right - one.plan.left <= options.wide;
    if (line && fits && line[0].block.stage === "layer" && one.block.stage === "layer") line.push(one);
    else lines.push([one]);
  }
  // One panel alone stands with its stream on the page's axis, several stand around it.
  const spans = lines.map((line) => {
    const across = line.reduce((sum, q) => sum + q.plan.right - q.plan.left, 0) + BETWEEN * (line.length - 1);
    return line.length > 1 ? [-across / 2, across / 2] : [line[0].plan.left, line[0].plan.right];
  });
  const [left, right] = [Math.min(...spans.map(([a]) => a)) - 8, Math.max(...spans.map(([, b]) => b)) + 8];
  const wide = Math.max(right - left, 240);
  const parts = [
    s(
      "defs",
      {},
      s(
        "marker",
        {
          id: "tip",
          viewBox: "0 0 8 8",
          refX: 5,
          refY: 4,
          markerWidth: 7,
          markerHeight: 7,
          orient: "auto-start-reverse",
        },
        s("path", { d: "M0,0.6 7,4 0,7.4z", fill: p.muted }),
      ),
    ),
  ];
  let y = 8;
  let leaving = null;
  lines.forEach((line, i) => {
    let x = spans[i][0] - left;
    const places = line.map(({ plan }) => {
      const place = x - plan.left;
      x += plan.right - plan.left + BETWEEN;
      return place;
    });
    if (leaving)
      parts.push(
        arrow(
          smooth([
            [leaving.x, leaving.y],
            [leaving.x, leaving.y + 8],
            [places[0], y - 4],
          ]),
          { color: p.ink, width: 1.6 },
        ),
      );
    line.forEach(({ block, plan }, k) => {
      if (k) {
        const lane = places[k] + plan.left - BETWEEN / 2;
        const end = y + line[k - 1].plan.height;
        parts.push(
          arrow(`M${places[k - 1]},${end}V${end + 12}H${lane}V${y - 14}H${places[k]}V${y - 4}`, {
            color: p.ink,
            width: 1.6,
          }),
        );
      }
      parts.push(
        s(
          "g",
          { transform: `translate(${places[k]},${y})`, "data-block": block.name },
          panel(block, plan, rows, options),
        ),
      );
    });
    leaving = { x: places.at(-1), y: y + line.at(-1).plan.height };
    y += Math.max(...line.map((q) => q.plan.height)) + BETWEEN;
  });
  y -= BETWEEN - 10;
  return s(
    "svg",
    {
      width: wide,
      height: y,
      viewBox: `0 0 ${wide} ${y}`,
      "font-family": "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif",
      role: "group",
      "aria-label": "Operators of the network",
    },
    parts,
  );
}
