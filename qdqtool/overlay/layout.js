// Where nodes go. A graph is cut where few lines cross into pieces that dagre lays out one by one, when they come into sight:
// so thousands of nodes are as fast as a hundred, and the height of what nobody has seen yet is known all the same.
const NODE = { width: 184, height: 46, side: 26, gap: 30 };
const PIECE = { least: 40, most: 120, long: 400 };

function layoutOf(nodes) {
  const lines = nodes.flatMap((node, to) =>
    (node.i ?? []).map(([from, tensor, isQuantized]) => ({ from, to, tensor, isQuantized })),
  );
  const step = new Int32Array(nodes.length + 1);
  for (const { from, to } of lines)
    if (to - from <= PIECE.long) {
      step[from + 1] += 1;
      step[to + 1] -= 1;
    }
  const crossing = [];
  let open = 0;
  for (const each of step) crossing.push((open += each));
  const pieces = [],
    of = [];
  for (let from = 0; from < nodes.length;) {
    let to = Math.min(from + PIECE.most, nodes.length);
    if (to < nodes.length) for (let at = to - 1; at >= from + PIECE.least; at--) if (crossing[at] < crossing[to]) to = at;
    for (let at = from; at < to; at++) of[at] = pieces.length;
    pieces.push({ from, to, lines: [], entering: [], depth: 0 });
    from = to;
  }
  const rank = new Int32Array(nodes.length);
  for (const line of lines) {
    const piece = pieces[of[line.to]];
    if (of[line.from] === of[line.to]) piece.lines.push(line);
    else piece.entering.push(line);
  }
  for (const piece of pieces) {
    // lines come by the place of their reader, so ranks before are known
    for (const { from, to } of piece.lines) rank[to] = Math.max(rank[to], rank[from] + 1);
    for (let at = piece.from; at < piece.to; at++) piece.depth = Math.max(piece.depth, rank[at]);
    piece.tall = (piece.depth + 1) * (NODE.height + NODE.gap);
  }
  let top = NODE.gap;
  for (const piece of pieces) {
    piece.top = top;
    top += piece.tall;
  }
  return { nodes, pieces, of, tall: top, x: [], y: [], left: -NODE.width, right: NODE.width };
}

// Lays out one piece: x and y of the middles of its nodes, and the points of its lines; its first node stands at x = 0.
function lay(layout, number) {
  const piece = layout.pieces[number];
  if (piece.isDone) return;
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ ranker: "longest-path", nodesep: NODE.side, ranksep: NODE.gap }).setDefaultEdgeLabel(() => ({}));
  for (let at = piece.from; at < piece.to; at++) graph.setNode(String(at), { width: NODE.width, height: NODE.height });
  piece.lines.forEach((line, at) => graph.setEdge(String(line.from), String(line.to), {}, String(at)));
  dagre.layout(graph);
  const middle = graph.node(String(piece.from)).x;
  for (let at = piece.from; at < piece.to; at++) {
    const { x, y } = graph.node(String(at));
    layout.x[at] = x - middle;
    layout.y[at] = y + piece.top;
    layout.left = Math.min(layout.left, x - middle - NODE.width);
    layout.right = Math.max(layout.right, x - middle + NODE.width);
  }
  piece.lines.forEach((line, at) => {
    const edge = graph.edge({ v: String(line.from), w: String(line.to), name: String(at) });
    line.points = edge.points.map(({ x, y }) => [x - middle, y + piece.top]);
  });
  piece.isDone = true;
}
