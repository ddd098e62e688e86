// Operators of little time that stand together in a block, as one node: what matters is seen first.

export const SMALL = 0.01; // of the time of all operators

const member = (node) => ({ row: node.row, part: node.part });

// The block with its nodes drawn together by `group` (node -> the one that stands for it), without what is then inside.
function contracted(block, group) {
  const edges = new Map();
  for (const edge of block.edges) {
    const [from, to] = [group.get(edge.from), group.get(edge.to)];
    const key = `${from} ${to} ${edge.kind === "residual"}`;
    if (from !== to && edges.get(key)?.kind !== "flow") edges.set(key, { from, to, kind: edge.kind });
  }
  return [...edges.values()];
}

function acyclic(block, group) {
  const edges = contracted(block, group);
  const state = new Map(); // node -> "open" on the way down, "done" after it
  const visit = (id) => {
    if (state.has(id)) return state.get(id) === "done";
    state.set(id, "open");
    const sound = edges.filter((e) => e.from === id).every((e) => visit(e.to));
    state.set(id, "done");
    return sound;
  };
  return block.nodes.every((n) => visit(group.get(n.id)));
}

// Small operators of which one feeds the other, and those side by side that read the same.
function neighbours(block, small) {
  const rank = new Map(block.nodes.map((n) => [n.id, n.rank]));
  const fed = block.edges.filter((e) => small.has(e.from) && small.has(e.to)).map((e) => [e.from, e.to]);
  const into = block.edges.filter((e) => small.has(e.to) && e.kind === "flow");
  const beside = into.flatMap((a) =>
    into.filter((b) => a.from === b.from && a.to < b.to && rank.get(a.to) === rank.get(b.to)).map((b) => [a.to, b.to]),
  );
  return [...fed, ...beside];
}

// Ranks again: below all that is read, and a residual sum below all that stood above it.
function reranked(nodes, edges) {
  const ranks = new Map();
  const rankOf = (node) => {
    if (!ranks.has(node.id)) {
      const read = edges
        .filter((e) => e.to === node.id)
        .map((e) => rankOf(nodes.find((n) => n.id === e.from)) + (e.kind === "cache" ? 0 : 1));
      const above = ["sum", "out"].includes(node.kind) ? nodes.filter((n) => n.rank < node.rank) : [];
      ranks.set(node.id, Math.max(0, ...read, ...above.map((n) => rankOf(n) + 1)));
    }
    return ranks.get(node.id);
  };
  return nodes.map((node) => ({ ...node, rank: rankOf(node) }));
}

// block: of the graph; share(node): its part of the operators' time; isOpen(node): whether it was asked for by itself.
// Several small operators become a node of kind "fold" with `rows`, and `ends` whose outputs leave it; one alone stays,
// and is `small`.
export function folded(block, share, isOpen) {
  const small = new Set(block.nodes.filter((n) => n.kind === "op" && share(n) < SMALL).map((n) => n.id));
  let group = new Map(block.nodes.map((n) => [n.id, n.id]));
  for (const [a, b] of neighbours(block, small)) {
    const [kept, gone] = [group.get(a), group.get(b)];
    const trial = new Map([...group].map(([id, of]) => [id, of === gone ? kept : of]));
    if (kept !== gone && acyclic(block, trial)) group = trial;
  }
  for (const first of new Set(group.values())) {
    const members = block.nodes.filter((n) => group.get(n.id) === first);
    if (members.length > 1 && members.some(isOpen)) members.forEach((n) => group.set(n.id, n.id));
  }
  const nodes = [...new Set(group.values())].map((first) => {
    const members = block.nodes.filter((n) => group.get(n.id) === first);
    const rank = Math.max(...members.map((n) => n.rank));
    if (members.length === 1) return small.has(first) ? { ...members[0], small: true } : members[0];
    const ids = new Set(members.map((n) => n.id));
    const leaves = (n) => block.edges.some((e) => e.from === n.id && !ids.has(e.to));
    const ends = members.filter(leaves).map((n) => n.row);
    return { id: first, kind: "fold", rank, rows: members.map(member), ends, aside: members.every((n) => n.aside) };
  });
  const edges = contracted(block, group);
  return { ...block, nodes: reranked(nodes, edges), edges, whole: block };
}
