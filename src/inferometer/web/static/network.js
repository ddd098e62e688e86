// The network as SVG: a panel per block with its count, operators as boxes (colour: what limits; height: time), edges.
import { s } from "./dom.js";
import { percent } from "./format.js";
import { JOIN, laidOut } from "./layout.js";
import { box, FONT, ghost, text, textWidth, widthOf } from "./node.js";
import { palette } from "./theme.js";

const BETWEEN = 46;
const STEM = 14; // an edge goes straight down past the shape beside it, then turns

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

const isNode = (node) => node.kind === "op" || node.kind === "fold";

// The title of a block, in the drawing and in the list above it: "A · layers 0–2"
export const titleOf = (block) =>
  [
    block.letter,
    block.stage === "layer" ? "" : block.name,
    block.layers && (block.stage === "layer" || block.count > 1) ? block.layers : "",
  ]
    .filter(Boolean)
    .join(" · ");

const badge = (block) => (block.count > 1 ? textWidth(`×${block.count}`, 12, 600) + 16 : 0);

// A node with all that its box says of it; see node.js. Layout and drawing ask many times.
function described(node, rows, options) {
  if (!options.known.has(node)) options.known.set(node, description(node, rows, options));
  return options.known.get(node);
}

function description(node, rows, options) {
  const parts = (node.rows ?? [node]).map(({ row, part }) => ({ row: rows[row], part, shapes: options.shapes[row] }));
  const sum = (value) => parts.reduce((total, one) => total + value(one), 0);
  const pinned = (one) => (options.before(one.row)?.seconds ?? 0) * one.part;
  return {
    row: parts[0].row,
    shapes: parts[0].shapes,
    members: node.kind === "fold" ? parts.map((one) => one.row) : null,
    small: node.small || node.kind === "fold",
    share: sum((one) => one.row.share * one.part),
    seconds: sum((one) => one.row.seconds * one.part),
    before: options.compared ? sum(pinned) : undefined,
    total: options.total,
    bound: parts.reduce((a, b) => (b.row.seconds * b.part > a.row.seconds * a.part ? b : a)).row.bound,
    key: options.key(parts[0].row),
  };
}

function frame(block, plan, gone) {
  const p = palette();
  const wide = badge(block);
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
    text(plan.left + 14, 22, titleOf(block), { "font-weight": 600, "font-size": 13 }),
    text(plan.left + 14, 37, `${percent(block.share)} of the time`, { "font-size": 10.5, fill: p.muted }),
  ];
  if (wide)
    parts.push(
      s("rect", { x: plan.right - wide - 10, y: 9, width: wide, height: 23, rx: 11.5, fill: p.ink }),
      text(plan.right - wide / 2 - 10, 25, `×${block.count}`, {
        "text-anchor": "middle",
        "font-weight": 600,
        fill: p.paper,
      }),
    );
  gone.forEach((row, i) => parts.push(ghost(row, plan.left + 14, 46 + 25 * i).element));
  return parts;
}

// The one shape of several rows; nothing where they differ.
function shapeOf(rows, shapes, word) {
  const all = new Set(rows.map((i) => shapes[i]?.[word]).filter(Boolean));
  return all.size === 1 ? [...all][0] : "";
}

// What comes in: the input of the norms that read it, else of all that do.
function entryShape({ nodes, edges }, rows, shapes) {
  const entry = nodes.find((n) => n.kind === "in").id;
  const firsts = edges
    .filter((e) => e.from === entry)
    .map((e) => nodes.find((n) => n.id === e.to))
    .filter((n) => n.kind === "op")
    .map((n) => n.row);
  const norms = firsts.filter((i) => rows[i].kind === "norm");
  return shapeOf(norms.length ? norms : firsts, shapes, "input");
}

// What is written below a node: the shape of what leaves it.
function leavingShape(node, block, rows, shapes) {
  if (node.kind === "out" || node.aside) return "";
  if (!isNode(node)) return entryShape(block.whole ?? block, rows, shapes);
  return shapeOf(node.ends ?? [node.row], shapes, "output");
}

function panel(block, plan, rows, options) {
  const p = palette();
  const parts = frame(block, plan, options.gone(block));
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
  for (const node of block.nodes) {
    const place = plan.at.get(node.id);
    if (isNode(node)) parts.push(boxOf(node, rows, place, options));
    if (node.kind === "sum") {
      const y = place.y + JOIN / 2;
      parts.push(
        s("circle", { cx: place.x, cy: y, r: JOIN / 2, fill: p.paper, stroke: p.ink, "stroke-width": 1.3 }),
        s("path", { d: `M${place.x - 5},${y}h10M${place.x},${y - 5}v10`, stroke: p.ink, "stroke-width": 1.4 }),
      );
    }
    const shape = leavingShape(node, block, rows, options.shapes);
    if (shape)
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

function boxOf(node, rows, place, options) {
  const one = described(node, rows, options);
  const pick = (byKey) => (one.members ? options.unfold(one.key) : options.pick(one.row, byKey));
  return box(one, place, { chosen: !one.members && options.chosen === one.row, pick });
}

// A block with its operators in their places.
function placed(block, rows, options) {
  const share = (node) => described(node, rows, options).share;
  const need = (node) => widthOf(described(node, rows, options));
  const gone = options.gone(block);
  const ghosts = Math.max(0, ...gone.map((row) => ghost(row, 0, 0).wide + 40));
  const title = Math.max(textWidth(titleOf(block), 13, 600) + badge(block) + 44, ghosts);
  const plan = laidOut(block, share, need, title, gone.length * 25);
  const reach = (node) => plan.at.get(node.id).x + textWidth(leavingShape(node, block, rows, options.shapes), 9.5) + 20;
  plan.right = Math.max(plan.right, ...block.nodes.map(reach));
  return { block, plan };
}

const isRepeated = (block) => block.stage === "layer" || block.count > 1;

// Two kinds of layers of the same part of the network.
export const alike = (one, other) => isRepeated(one) && isRepeated(other) && one.stage === other.stage;

const across = (line) => line.reduce((sum, q) => sum + q.plan.right - q.plan.left, 0) + BETWEEN * (line.length - 1);

// Kinds of layers stand side by side where there is room; the stream runs on downwards.
function rowsOf(panels, wide) {
  const lines = [];
  for (const one of panels) {
    const line = lines.at(-1);
    if (line && alike(line[0].block, one.block) && across([...line, one]) <= wide) line.push(one);
    else lines.push([one]);
  }
  return lines;
}

// The stream between kinds of layers that stand side by side: from each to the next, and back where layers alternate.
function between(line, places, y) {
  const around = (from, to, lane, off) => {
    const low = y + line[from].plan.height + off;
    return arrow(`M${places[from]},${low - off}V${low}H${lane}V${y - off}H${places[to]}V${y - 4}`, {
      color: palette().ink,
      width: 1.6,
    });
  };
  return line.slice(1).flatMap(({ block, plan }, i) => {
    const lane = places[i + 1] + plan.left - BETWEEN / 2;
    const before = line[i].block;
    const [on, back] = [before.next?.includes(block.name), block.next?.includes(before.name)];
    return [(on || !back) && around(i, i + 1, lane - 5, 12), back && around(i + 1, i, lane + 5, 19)];
  });
}

// phase: of the graph; rows: the phase's ops; options: { chosen, shapes, total, compared, before(row), gone(block),
// pick(row), unfold(key), key(row), wide: pixels that blocks of layers may take side by side }
export function network(phase, rows, wanted) {
  const p = palette();
  const options = { ...wanted, known: new Map() };
  const panels = phase.blocks.map((block) => placed(block, rows, options));
  const lines = rowsOf(panels, options.wide);
  // One panel alone stands with its stream on the page's axis, several stand around it.
  const spans = lines.map((line) =>
    line.length > 1 ? [-across(line) / 2, across(line) / 2] : [line[0].plan.left, line[0].plan.right],
  );
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
            [leaving.x, leaving.from],
            [leaving.x, leaving.turn],
            [places[0], y - 4],
          ]),
          { color: p.ink, width: 1.6 },
        ),
      );
    parts.push(...between(line, places, y).filter(Boolean));
    line.forEach(({ block, plan }, k) => {
      parts.push(
        s(
          "g",
          { transform: `translate(${places[k]},${y})`, "data-block": block.name },
          panel(block, plan, rows, options),
        ),
      );
    });
    const last = line.reduce((a, b) => ((b.block.last ?? 0) >= (a.block.last ?? 0) ? b : a));
    const low = y + Math.max(...line.map((q) => q.plan.height));
    const turn = low + (line.length > 1 ? 26 : 8); // below the lines between the panels
    leaving = { x: places[line.indexOf(last)], from: y + last.plan.height, turn };
    y = turn + BETWEEN - 8;
  });
  y -= BETWEEN - 10;
  return s(
    "svg",
    {
      width: wide,
      height: y,
      viewBox: `0 0 ${wide} ${y}`,
      "font-family": FONT,
      role: "group",
      "aria-label": "Operators of the network",
      "data-beside": String(lines.some((line) => line.length > 1)),
    },
    parts,
  );
}
