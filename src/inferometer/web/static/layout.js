// Where the operators of a block stand: ranks downwards, those of one rank side by side, long edges in the gaps.

const NODE = 200; // width of an operator, at least
const LEAST = 40; // height of an operator that takes no time; the taller, the more time
const SMALL = 24; // of one that takes hardly any, and of several of those
const GROWTH = 130; // more for one that takes all of it
const GAP = 34;
const SIDE = 26;
export const JOIN = 20; // diameter of a residual sum
const HEAD = 48;
const PAD = 20;
const LANE = 26; // room for residual connections, left

// The place nearest to x that no span has taken.
function free(x, taken) {
  const spots = [x, ...taken.flat()].filter((spot) => !taken.some(([a, b]) => a < spot && spot < b));
  return spots.reduce((best, spot) => (Math.abs(spot - x) < Math.abs(best - x) ? spot : best), spots[0]);
}

// block: of the graph; share(node): its part of the phase's time; need(node): pixels of its width;
// title, top: the width of its title, and pixels below that for more of it.
// -> { at: id -> {x, y, w, h}, bends, left, right, height }
export function laidOut(block, share, need, title = 0, top = 0) {
  const isNode = (n) => n.kind === "op" || n.kind === "fold";
  const isSmall = (n) => n.small || n.kind === "fold";
  const node = Math.max(NODE, ...block.nodes.filter(isNode).map(need));
  const byId = new Map(block.nodes.map((node) => [node.id, node]));
  const rankOf = (id) => byId.get(id).rank;
  const tall = (id) => {
    const one = byId.get(id);
    return !isNode(one) ? JOIN : isSmall(one) ? SMALL : LEAST + GROWTH * share(one);
  };
  const wide = (id) => {
    const one = byId.get(id);
    return !isNode(one) ? JOIN : isSmall(one) ? need(one) : node;
  };
  const entry = block.nodes.find((n) => n.kind === "in");
  const exit = block.nodes.find((n) => n.kind === "out");
  const inner = block.nodes.filter((n) => isNode(n) || n.kind === "sum");
  const ranks = [...new Set(inner.map((n) => n.rank))].sort((a, b) => a - b);
  const at = new Map([[entry.id, { x: 0, y: HEAD + top, w: 0, h: 0 }]]);
  const bends = new Map(); // edge -> [{ x, y0, y1 }] where it passes other ranks
  const flowing = block.edges.filter((e) => e.kind !== "residual");
  const above = (edge) => bends.get(edge)?.at(-1)?.x ?? at.get(edge.from).x;
  // Where the inputs of a node come down.
  const near = (id) => {
    const xs = flowing.filter((e) => e.to === id && e.kind === "flow" && at.has(e.from)).map(above);
    return xs.length ? xs.reduce((a, b) => a + b) / xs.length : 0;
  };
  let y = HEAD + top + GAP;
  for (const rank of ranks) {
    const ids = inner.filter((n) => n.rank === rank).map((n) => n.id);
    const high = Math.max(...ids.map(tall));
    const line = ids.filter((id) => !byId.get(id).aside).sort((a, b) => near(a) - near(b) || a - b);
    const alone = line.length === 1;
    let first = (-(line.length - 1) / 2) * (node + SIDE);
    for (const id of ids.filter((i) => byId.get(i).aside)) {
      // beside its reader, where that stands in this rank
      const reader = flowing.find((e) => e.from === id && line.includes(e.to))?.to ?? line.at(-1);
      line.splice(reader === undefined ? 0 : line.indexOf(reader) + 1, 0, id);
      first -= alone ? 0 : (node + SIDE) / 2;
    }
    line.forEach((id, k) =>
      at.set(id, { x: first + k * (node + SIDE), y: y + (high - tall(id)) / 2, w: wide(id), h: tall(id) }),
    );
    const taken = ids.map((id) => [at.get(id).x - wide(id) / 2 - 12, at.get(id).x + wide(id) / 2 + 12]);
    for (const edge of flowing) {
      if (rankOf(edge.from) < rank && rank < rankOf(edge.to) && at.has(edge.from)) {
        const x = free(above(edge), taken);
        taken.push([x - 7, x + 7]);
        bends.set(edge, [...(bends.get(edge) ?? []), { x, y0: y, y1: y + high }]);
      }
    }
    y += high + GAP;
  }
  at.set(exit.id, { x: 0, y, w: 0, h: 0 });
  const xs = [
    ...inner.flatMap((n) => [at.get(n.id).x - wide(n.id) / 2, at.get(n.id).x + wide(n.id) / 2]),
    ...[...bends.values()].flat().map((b) => b.x),
  ];
  const residual = block.edges.some((e) => e.kind === "residual");
  const left = Math.min(...xs) - PAD - (residual ? LANE : 0);
  return {
    at,
    bends,
    left,
    right: Math.max(Math.max(...xs) + PAD, left + title),
    height: y,
    lane: LANE,
  };
}
