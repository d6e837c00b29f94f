// The graphs: one pane a model, of which the pieces are drawn that are in sight. The page knows what is picked (isPicked, pick,
// last), what differs, the models, the metric that is shown, and what stands above a pane (heading).
const panesOf = ({ el, svg, put, digits, colours }, page) => {
  let panes = [],
    zoom = 1;
  const at = { pane: 0, node: 0 };
  const short = (text, letters) => (text.length > letters ? `…${text.slice(1 - letters)}` : text);
  const grid = (row) => {
    const [, power, plain] = /scale (?:(2\^-?\d+)|([\d.e+-]+))/.exec(row.g ?? "") ?? [];
    return `${(row.g ?? "").split(",")[0]} ${power ?? (plain ? digits(plain, 3) : "")}`.trim();
  };
  function pane(number) {
    const canvas = el("canvas", { title: "The whole graph; a click goes there", "aria-hidden": "true" });
    const picture = svg("svg", { role: "listbox", tabindex: "0", "aria-multiselectable": "true" }),
      box = el("div", { class: "graph" }, picture);
    const whole = el("section", { class: "pane" }, el("h2"), el("div", {}, canvas, box));
    const found = { number, whole, canvas, box, picture, drawn: new Map() };
    box.addEventListener("scroll", () => requestAnimationFrame(() => show(found)), { passive: true });
    canvas.addEventListener("click", (event) =>
      go(found, Math.floor((event.offsetY / canvas.clientHeight) * found.layout.nodes.length)),
    );
    picture.addEventListener("click", (event) => {
      const one = event.target.closest("[data-tensor]") ?? event.target.closest("[data-node]");
      if (event.target.dataset.to) go(found, Number(event.target.dataset.to));
      else if (one)
        page.pick(
          one.dataset.tensor === undefined ? "node" : "tensor",
          one.dataset.tensor ?? one.dataset.node,
          event.shiftKey || event.ctrlKey || event.metaKey,
          number,
          Number(one.closest("[data-at]").dataset.at),
        );
    });
    picture.addEventListener("keydown", (event) => {
      const by = {
        ArrowDown: 1,
        ArrowRight: 1,
        ArrowUp: -1,
        ArrowLeft: -1,
        PageDown: 10,
        PageUp: -10,
        Home: -Infinity,
        End: Infinity,
      }[event.key];
      if (by !== undefined) {
        event.preventDefault();
        go(found, Math.max(0, Math.min(found.layout.nodes.length - 1, (at.pane === number ? at.node : 0) + by)));
      }
      const place = at.pane === number ? at.node : 0,
        node = found.layout.nodes[place];
      if (event.key === "Enter" && node) page.pick("node", node.n, event.shiftKey, number, place);
    });
    return found;
  }
  const signature = (graph) => JSON.stringify(graph.nodes.map((node) => [node.n, node.i]));
  function draw() {
    if (panes.length !== page.models().length) {
      panes = page.models().map((_, number) => pane(number));
      put("#panes", ...panes.map((each) => each.whole));
    }
    const shown = page.shown();
    const rows = page.models().flatMap((model) => model.nodes),
      { css, legend } = colours(shown, rows);
    const tensors =
      shown.tensor &&
      colours(
        { ...shown, get: shown.tensor },
        page.models().flatMap((model) => model.tensors),
      );
    panes.forEach((each, number) => {
      const model = page.models()[number],
        mark = signature(model.graph);
      if (each.mark !== mark) {
        each.layout = layoutOf(model.graph.nodes);
        each.mark = mark;
      }
      Object.assign(each, {
        model,
        css: (row) => (row && row.own ? css(row) : "none"),
        chip: (row) => (tensors ? tensors.css(row) : "none"),
      });
      put(each.whole.querySelector("h2"), page.heading(number, model));
      each.picture.setAttribute("aria-label", `Nodes of ${model.label} by ${shown.title}`);
      each.drawn.clear();
      each.picture.replaceChildren();
      show(each);
      overview(each);
    });
    put("#legend", ...legend);
  }
  function show(each) {
    const { layout, box, picture, drawn } = each,
      reach = box.clientHeight / zoom,
      top = box.scrollTop / zoom;
    const wanted = layout.pieces
      .map((_, number) => number)
      .filter(
        (number) =>
          layout.pieces[number].top < top + 2 * reach && layout.pieces[number].top + layout.pieces[number].tall > top - reach,
      );
    const [left, right] = [layout.left, layout.right];
    for (const number of wanted) lay(layout, number);
    if (left !== layout.left || right !== layout.right || each.zoom !== zoom || !drawn.size) {
      const before = each.zoom === zoom ? left : undefined,
        wide = Math.max(layout.right - layout.left, box.clientWidth / zoom),
        from = layout.left - (wide - layout.right + layout.left) / 2;
      for (const [name, value] of Object.entries({
        viewBox: `${from} 0 ${wide} ${layout.tall}`,
        width: wide * zoom,
        height: layout.tall * zoom,
      }))
        picture.setAttribute(name, value);
      if (before === undefined || !drawn.size) box.scrollLeft = (-from - box.clientWidth / zoom / 2) * zoom;
      each.zoom = zoom;
    }
    for (const [number, group] of drawn)
      if (!wanted.includes(number)) {
        group.remove();
        drawn.delete(number);
      }
    for (const number of wanted)
      if (!drawn.has(number)) {
        const group = piece(each, number);
        drawn.set(number, group);
        picture.append(group);
      }
  }
  function piece(each, number) {
    const { layout } = each,
      { pieces, x, y, nodes } = layout,
      one = pieces[number],
      half = NODE.height / 2;
    const path = (points) =>
      points.slice(1, -1).reduce(
        (text, [px, py], place, all) => {
          const [nx, ny] = all[place + 1] ?? points.at(-1);
          return `${text} Q ${px} ${py} ${place + 1 < all.length ? (px + nx) / 2 : nx} ${place + 1 < all.length ? (py + ny) / 2 : ny}`;
        },
        `M ${points[0].join(" ")}`,
      ) + (points.length < 3 ? ` L ${points.at(-1).join(" ")}` : "");
    const lines = one.lines.map((line) =>
      svg("path", { class: `line ${line.isQuantized ? "q" : ""}`, d: path(line.points) }, svg("title", {}, line.tensor)),
    );
    const stubs = new Map();
    for (const line of one.entering) {
      const to = [x[line.to], y[line.to] - half];
      if (layout.of[line.from] === number - 1) {
        lay(layout, number - 1);
        const from = [x[line.from], y[line.from] + half],
          bend = Math.max(20, (to[1] - from[1]) / 2);
        lines.push(
          svg(
            "path",
            {
              class: `line ${line.isQuantized ? "q" : ""}`,
              d: `M ${from.join(" ")} C ${from[0]} ${from[1] + bend} ${to[0]} ${to[1] - bend} ${to.join(" ")}`,
            },
            svg("title", {}, line.tensor),
          ),
        );
      } else {
        const place = stubs.get(line.to) ?? 0;
        stubs.set(line.to, place + 1);
        lines.push(
          svg(
            "text",
            { class: "stub", x: to[0] - NODE.width / 2, y: to[1] - 3 - 9 * place, "data-to": line.from },
            `↑ ${short(nodes[line.from].n, 34)}`,
          ),
        );
      }
    }
    const boxes = [];
    for (let place = one.from; place < one.to; place++) boxes.push(nodeBox(each, place));
    return svg("g", {}, ...lines, ...boxes);
  }
  function nodeBox(each, place) {
    const { layout, model, number } = each,
      node = layout.nodes[place],
      row = model.byNode.get(node.n),
      shown = page.shown();
    const x = layout.x[place] - NODE.width / 2,
      y = layout.y[place] - NODE.height / 2;
    const told = `${node.n}, ${node.op}: ${shown.title} ${shown.show(row) || "not known"}`;
    const own = (names) => (names ?? []).map((name) => model.byTensor.get(name)).filter(Boolean);
    const chips = [
      ...own(node.w).map((tensor) => [tensor, tensor.k === "bias" ? "B" : "W"]),
      ...own(node.q).map((tensor) => [tensor, ""]),
    ];
    const wide = Math.min(86, (NODE.width - 8) / Math.max(chips.length, 1));
    const tags = chips.map(([tensor, sign], order) => {
      const text = `${sign} ${grid(tensor)}`.trim(),
        css = ["chip", page.isPicked("tensor", tensor.n) && "picked", page.differs(tensor.n) && "differs"]
          .filter(Boolean)
          .join(" ");
      const left = sign ? x + 4 + order * wide : x + NODE.width - 4 - wide * (chips.length - order);
      return svg(
        "g",
        { class: css, "data-tensor": tensor.n },
        svg("rect", { class: each.chip(tensor), x: left, y: y + NODE.height - 15, width: wide - 2, height: 12, rx: 3 }),
        svg("text", { x: left + 3, y: y + NODE.height - 6 }, text.slice(0, Math.floor(wide / 4.9))),
        svg("title", {}, `${tensor.n}: ${tensor.g ?? ""}`),
      );
    });
    const css = [
      "one",
      page.isPicked("node", node.n) && "picked",
      at.pane === number && at.node === place && "at",
      page.differs(node.n) && "differs",
    ]
      .filter(Boolean)
      .join(" ");
    return svg(
      "g",
      {
        class: css,
        id: `m${number}-n${place}`,
        role: "option",
        "aria-selected": String(page.isPicked("node", node.n)),
        "aria-label": told,
        "data-node": node.n,
        "data-at": place,
      },
      svg("rect", { class: `box ${each.css(row)}`, x, y, width: NODE.width, height: NODE.height, rx: 5 }),
      svg("text", { x: x + 6, y: y + 14 }, `${node.op}${node.b ? " ▣" : ""}`),
      svg("text", { class: "tail", x: x + 6, y: y + 26 }, short(node.n, 32)),
      svg("title", {}, told),
      ...tags,
    );
  }
  function overview(each) {
    const { canvas, layout, model } = each,
      tall = canvas.clientHeight,
      ink = canvas.getContext("2d"),
      probe = svg("rect", {});
    canvas.width = 26;
    canvas.height = tall;
    each.picture.append(probe);
    const known = new Map(),
      colour = (css) => {
        if (!known.has(css)) {
          probe.setAttribute("class", `box ${css}`);
          known.set(css, getComputedStyle(probe).fill);
        }
        return known.get(css);
      };
    layout.nodes.forEach((node, place) => {
      ink.fillStyle = colour(each.css(model.byNode.get(node.n)));
      ink.fillRect(0, (place * tall) / layout.nodes.length, 26, Math.max(tall / layout.nodes.length, 1));
    });
    probe.remove();
  }
  // Goes to a node: it stands in the middle and is where keys walk from.
  function go(each, asked) {
    const place = Math.min(asked, each.layout.nodes.length - 1);
    if (place < 0) return;
    lay(each.layout, each.layout.of[place]);
    Object.assign(at, { pane: each.number, node: place });
    show(each);
    each.box.scrollTop = each.layout.y[place] * zoom - each.box.clientHeight / 2;
    show(each);
    const from = Number(each.picture.getAttribute("viewBox").split(" ")[0]),
      x = (each.layout.x[place] - from) * zoom;
    if (x < each.box.scrollLeft + 100 || x > each.box.scrollLeft + each.box.clientWidth - 100)
      each.box.scrollLeft = x - each.box.clientWidth / 2;
    each.picture.querySelectorAll(".at").forEach((one) => one.classList.remove("at"));
    each.picture.setAttribute("aria-activedescendant", `m${each.number}-n${place}`);
    document.getElementById(`m${each.number}-n${place}`)?.classList.add("at");
  }
  // Goes to the last that is picked, in every pane but the one where it was clicked.
  function reveal(except) {
    const last = page.last();
    if (!last) return;
    panes.forEach((each) => {
      const name = last.kind === "node" ? last.name : each.model.byTensor.get(last.name)?.o;
      const place = each.layout.nodes.findIndex(
        (node) => node.n === name || node.q?.includes(last.name) || node.w?.includes(last.name),
      );
      if (place >= 0 && each.number !== except) go(each, place);
    });
  }
  const resize = (factor) => {
    zoom = Math.min(2, Math.max(0.2, zoom * factor));
    for (const each of panes) {
      each.box.scrollTop *= factor;
      show(each);
    }
  };
  const redraw = () => {
    for (const each of panes) {
      each.drawn.clear();
      each.picture.replaceChildren();
      show(each);
      overview(each);
    }
  };
  return { at, draw, reveal, resize, redraw };
};
