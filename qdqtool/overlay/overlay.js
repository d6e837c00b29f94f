// The page of `view --overlay`: graphs in the colours of a metric, what is picked, and its edits. What the page shows is what the
// server last said; an edit asks the server, which runs the command and answers with all that is new.
(() => {
  let state = JSON.parse(document.getElementById("data").textContent);
  const key = state.key;
  const anchor = (kind, name) => el("a", { href: "#", click: (event) => { event.preventDefault(); pick(kind, name, event.shiftKey); reveal(); } }, name);
  const { $, el, svg, put, digits, percent, isChanged, prepared, METRICS, colours, tensorCard, nodeCard } = partsOf({ levels: state.levels, anchor, make: (name, kind) => change("/mend", { name, kind }) });
  const worst = (rows, get, sign) => rows.map(get).filter((value) => value !== undefined).reduce((a, b) => (a === undefined || sign * b > sign * a ? b : a), undefined);
  const width = (grid) => { const bits = /^u?(?:int|fixed)?(?:float)?(\d+)/.exec(grid ?? "")?.[1]; return bits ? `${bits}-bit` : undefined; };
  const db = (value) => value === undefined ? "" : `${digits(value)} dB`;
  // A metric of nodes, and of tensors where they have it.
  const COLOURS = {
    type: { title: "type", get: (n) => { const bits = worst(n.own.filter((t) => t.k !== "bias"), (t) => Number.parseInt(width(t.g), 10) || undefined, -1); return bits ? `${bits}-bit` : "float"; },
      show: (n) => COLOURS.type.get(n), tensor: (t) => width(t.g), words: ["4-bit", "8-bit", "16-bit", "32-bit", "float"] },
    price: { ...METRICS.price, tensor: (t) => t.s },
    sqnr: { title: "SQNR of tensors alone", get: (n) => worst(n.own, (t) => t.db, -1), show: (n) => db(COLOURS.sqnr.get(n)), level: (v) => -v, what: "noise", tensor: (t) => t.db },
    clipped: { title: "clipped share", get: (n) => worst(n.own, (t) => t.cl, 1), show: (n) => percent(COLOURS.clipped.get(n)), level: Math.sqrt, tensor: (t) => t.cl },
    here: METRICS.here, whole: METRICS.whole, verdict: METRICS.verdict, time: METRICS.us, bytes: METRICS.bytes,
    changes: { title: "differences", get: (n) => differs(n.n) || n.own.some((t) => differs(t.n)) ? "differs" : "same", show: (n) => COLOURS.changes.get(n), tensor: (t) => differs(t.n) ? "differs" : "same", words: ["same", "differs"] },
  };
  let models, apart, panes = [], metric = state.metric, zoom = 1, picked = [], at = { pane: 0, node: 0 };
  const differs = (name) => apart.has(name);

  function take(next) {
    state = next;
    models = state.models.map(prepared);
    for (const model of models) {
      for (const node of model.graph.nodes) { // inputs and outputs of the graph are no nodes of the record
        if (!model.byNode.has(node.n)) model.byNode.set(node.n, { n: node.n, op: node.op, own: model.tensors.filter((tensor) => tensor.o === node.n) });
      }
    }
    const grids = new Map();
    models.forEach((model, number) => {
      for (const row of model.tensors) (grids.get(row.n) ?? grids.set(row.n, []).get(row.n))[number] = row.g;
      for (const node of model.graph.nodes) (grids.get(node.n) ?? grids.set(node.n, []).get(node.n))[number] ??= node.op;
    });
    apart = new Set([...grids].filter(([, each]) => models.length > 1 && (isChanged(each) || models.some((_, number) => each[number] === undefined))).map(([name]) => name));
    picked = picked.filter(({ kind, name }) => models.some((model) => (kind === "tensor" ? model.byTensor : model.byNode).has(name)));
  }

  // ---- panes
  const short = (text, letters) => text.length > letters ? `…${text.slice(1 - letters)}` : text;
  const grid = (row) => { const [, power, plain] = /scale (?:(2\^-?\d+)|([\d.e+-]+))/.exec(row.g ?? "") ?? []; return `${(row.g ?? "").split(",")[0]} ${power ?? (plain ? digits(plain, 3) : "")}`.trim(); };
  const isPicked = (kind, name) => picked.some((one) => one.kind === kind && one.name === name);
  function pane(number) {
    const canvas = el("canvas", { title: "The whole graph; a click goes there", "aria-hidden": "true" });
    const picture = svg("svg", { role: "listbox", tabindex: "0", "aria-multiselectable": "true" }), box = el("div", { class: "graph" }, picture);
    const whole = el("section", { class: "pane" }, el("h2"), el("div", {}, canvas, box));
    const found = { number, whole, canvas, box, picture, drawn: new Map() };
    box.addEventListener("scroll", () => requestAnimationFrame(() => show(found)), { passive: true });
    canvas.addEventListener("click", (event) => go(found, Math.floor((event.offsetY / canvas.clientHeight) * found.layout.nodes.length)));
    picture.addEventListener("click", (event) => {
      const one = event.target.closest("[data-tensor]") ?? event.target.closest("[data-node]");
      if (event.target.dataset.to) go(found, Number(event.target.dataset.to));
      else if (one) pick(one.dataset.tensor === undefined ? "node" : "tensor", one.dataset.tensor ?? one.dataset.node, event.shiftKey || event.ctrlKey || event.metaKey, number, Number(one.closest("[data-at]").dataset.at));
    });
    picture.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (by !== undefined) { event.preventDefault(); go(found, Math.max(0, Math.min(found.layout.nodes.length - 1, (at.pane === number ? at.node : 0) + by))); }
      if (event.key === "Enter") pick("node", found.layout.nodes[at.node].n, event.shiftKey, number, at.node);
    });
    return found;
  }
  const signature = (graph) => JSON.stringify(graph.nodes.map((node) => [node.n, node.i]));
  function draw() {
    if (panes.length !== models.length) { panes = models.map((_, number) => pane(number)); put("#panes", ...panes.map((each) => each.whole)); }
    const shown = COLOURS[metric];
    const rows = models.flatMap((model) => model.nodes), { css, legend } = colours(shown, rows);
    const tensors = shown.tensor && colours({ ...shown, get: shown.tensor }, models.flatMap((model) => model.tensors));
    panes.forEach((each, number) => {
      const model = models[number], mark = signature(model.graph);
      if (each.mark !== mark) { each.layout = layoutOf(model.graph.nodes); each.mark = mark; }
      Object.assign(each, { model, css: (row) => row && row.own ? css(row) : "none", chip: (row) => tensors ? tensors.css(row) : "none" });
      const edited = number === 0 && (state.edits.length || state.before) ? ", edited" : "";
      put(each.whole.querySelector("h2"), `${model.label}${edited}${model.noise ? `: SQNR ${digits(-10 * Math.log10(model.noise))} dB${state.stale && number === 0 ? " before the edits" : ""}` : ""}`);
      each.picture.setAttribute("aria-label", `Nodes of ${model.label} by ${shown.title}`);
      each.drawn.clear();
      each.picture.replaceChildren();
      show(each);
      overview(each);
    });
    put("#legend", ...legend);
  }
  function show(each) {
    const { layout, box, picture, drawn } = each, reach = box.clientHeight / zoom, top = box.scrollTop / zoom;
    const wanted = layout.pieces.map((_, number) => number).filter((number) => layout.pieces[number].top < top + 2 * reach && layout.pieces[number].top + layout.pieces[number].tall > top - reach);
    const [left, right] = [layout.left, layout.right];
    for (const number of wanted) lay(layout, number);
    if (left !== layout.left || right !== layout.right || each.zoom !== zoom || !drawn.size) {
      const before = each.zoom === zoom ? left : undefined, wide = Math.max(layout.right - layout.left, box.clientWidth / zoom), from = layout.left - (wide - layout.right + layout.left) / 2;
      for (const [name, value] of Object.entries({ viewBox: `${from} 0 ${wide} ${layout.tall}`, width: wide * zoom, height: layout.tall * zoom })) picture.setAttribute(name, value);
      if (before === undefined || !drawn.size) box.scrollLeft = (-from - box.clientWidth / zoom / 2) * zoom;
      each.zoom = zoom;
    }
    for (const [number, group] of drawn) if (!wanted.includes(number)) { group.remove(); drawn.delete(number); }
    for (const number of wanted) if (!drawn.has(number)) { const group = piece(each, number); drawn.set(number, group); picture.append(group); }
  }
  function piece(each, number) {
    const { layout } = each, { pieces, x, y, nodes } = layout, one = pieces[number], half = NODE.height / 2;
    const path = (points) => points.slice(1, -1).reduce((text, [px, py], place, all) => { const [nx, ny] = all[place + 1] ?? points.at(-1); return `${text} Q ${px} ${py} ${place + 1 < all.length ? (px + nx) / 2 : nx} ${place + 1 < all.length ? (py + ny) / 2 : ny}`; }, `M ${points[0].join(" ")}`) + (points.length < 3 ? ` L ${points.at(-1).join(" ")}` : "");
    const lines = one.lines.map((line) => svg("path", { class: `line ${line.isQuantized ? "q" : ""}`, d: path(line.points) }, svg("title", {}, line.tensor)));
    const stubs = new Map();
    for (const line of one.entering) {
      const to = [x[line.to], y[line.to] - half];
      if (layout.of[line.from] === number - 1) {
        lay(layout, number - 1);
        const from = [x[line.from], y[line.from] + half], bend = Math.max(20, (to[1] - from[1]) / 2);
        lines.push(svg("path", { class: `line ${line.isQuantized ? "q" : ""}`, d: `M ${from.join(" ")} C ${from[0]} ${from[1] + bend} ${to[0]} ${to[1] - bend} ${to.join(" ")}` }, svg("title", {}, line.tensor)));
      } else {
        const place = stubs.get(line.to) ?? 0;
        stubs.set(line.to, place + 1);
        lines.push(svg("text", { class: "stub", x: to[0] - NODE.width / 2, y: to[1] - 3 - 9 * place, "data-to": line.from }, `↑ ${short(nodes[line.from].n, 34)}`));
      }
    }
    const boxes = [];
    for (let place = one.from; place < one.to; place++) boxes.push(nodeBox(each, place));
    return svg("g", {}, ...lines, ...boxes);
  }
  function nodeBox(each, place) {
    const { layout, model, number } = each, node = layout.nodes[place], row = model.byNode.get(node.n), shown = COLOURS[metric];
    const x = layout.x[place] - NODE.width / 2, y = layout.y[place] - NODE.height / 2;
    const told = `${node.n}, ${node.op}: ${shown.title} ${shown.show(row) || "not known"}`;
    const own = (names) => (names ?? []).map((name) => model.byTensor.get(name)).filter(Boolean);
    const chips = [...own(node.w).map((tensor) => [tensor, tensor.k === "bias" ? "B" : "W"]), ...own(node.q).map((tensor) => [tensor, ""])];
    const wide = Math.min(86, (NODE.width - 8) / Math.max(chips.length, 1));
    const tags = chips.map(([tensor, sign], order) => {
      const text = `${sign} ${grid(tensor)}`.trim(), css = ["chip", isPicked("tensor", tensor.n) && "picked", differs(tensor.n) && "differs"].filter(Boolean).join(" ");
      const left = sign ? x + 4 + order * wide : x + NODE.width - 4 - wide * (chips.length - order);
      return svg("g", { class: css, "data-tensor": tensor.n }, svg("rect", { class: each.chip(tensor), x: left, y: y + NODE.height - 15, width: wide - 2, height: 12, rx: 3 }),
        svg("text", { x: left + 3, y: y + NODE.height - 6 }, text.slice(0, Math.floor(wide / 4.9))), svg("title", {}, `${tensor.n}: ${tensor.g ?? ""}`));
    });
    const css = ["one", isPicked("node", node.n) && "picked", at.pane === number && at.node === place && "at", differs(node.n) && "differs"].filter(Boolean).join(" ");
    return svg("g", { class: css, id: `m${number}-n${place}`, role: "option", "aria-selected": String(isPicked("node", node.n)), "aria-label": told, "data-node": node.n, "data-at": place },
      svg("rect", { class: `box ${each.css(row)}`, x, y, width: NODE.width, height: NODE.height, rx: 5 }), svg("text", { x: x + 6, y: y + 14 }, `${node.op}${node.b ? " ▣" : ""}`),
      svg("text", { class: "tail", x: x + 6, y: y + 26 }, short(node.n, 32)), svg("title", {}, told), ...tags);
  }
  function overview(each) {
    const { canvas, layout, model } = each, tall = canvas.clientHeight, ink = canvas.getContext("2d"), probe = svg("rect", {});
    canvas.width = 26; canvas.height = tall;
    each.picture.append(probe);
    const known = new Map(), colour = (css) => { if (!known.has(css)) { probe.setAttribute("class", `box ${css}`); known.set(css, getComputedStyle(probe).fill); } return known.get(css); };
    layout.nodes.forEach((node, place) => {
      ink.fillStyle = colour(each.css(model.byNode.get(node.n)));
      ink.fillRect(0, (place * tall) / layout.nodes.length, 26, Math.max(tall / layout.nodes.length, 1));
    });
    probe.remove();
  }
  // Goes to a node: it stands in the middle and is where keys walk from.
  function go(each, place) {
    lay(each.layout, each.layout.of[place]);
    at = { pane: each.number, node: place };
    show(each);
    each.box.scrollTop = each.layout.y[place] * zoom - each.box.clientHeight / 2;
    show(each);
    const from = Number(each.picture.getAttribute("viewBox").split(" ")[0]), x = (each.layout.x[place] - from) * zoom;
    if (x < each.box.scrollLeft + 100 || x > each.box.scrollLeft + each.box.clientWidth - 100) each.box.scrollLeft = x - each.box.clientWidth / 2;
    each.picture.querySelectorAll(".at").forEach((one) => one.classList.remove("at"));
    each.picture.setAttribute("aria-activedescendant", `m${each.number}-n${place}`);
    document.getElementById(`m${each.number}-n${place}`)?.classList.add("at");
  }
  // Goes to the last that is picked, in every pane but the one where it was clicked.
  function reveal(except) {
    const last = picked.at(-1);
    if (!last) return;
    panes.forEach((each) => {
      const name = last.kind === "node" ? last.name : each.model.byTensor.get(last.name)?.o;
      const place = each.layout.nodes.findIndex((node) => node.n === name || node.q?.includes(last.name) || node.w?.includes(last.name));
      if (place >= 0 && each.number !== except) go(each, place);
    });
  }

  // ---- what is picked
  function pick(kind, name, isMore, paneNumber, place) {
    const was = isPicked(kind, name);
    picked = isMore ? picked.filter((one) => one.kind !== kind || one.name !== name) : [];
    if (!was || !isMore) picked.push({ kind, name });
    if (place !== undefined) at = { pane: paneNumber, node: place };
    remark();
    if (paneNumber !== undefined && panes.length > 1) reveal(paneNumber);
  }
  function remark() {
    document.querySelectorAll("[data-node], [data-tensor]").forEach((one) => {
      const isNode = one.dataset.tensor === undefined, is = isPicked(isNode ? "node" : "tensor", isNode ? one.dataset.node : one.dataset.tensor);
      one.classList.toggle("picked", is);
      if (isNode) { one.setAttribute("aria-selected", String(is)); one.classList.toggle("at", one.id === `m${at.pane}-n${at.node}`); }
    });
    detail();
  }
  function card({ kind, name }) {
    return models.map((model) => {
      const row = (kind === "tensor" ? model.byTensor : model.byNode).get(name), title = models.length > 1 ? el("h4", {}, model.label) : "";
      if (!row) return el("article", {}, title, el("p", { class: "note" }, `has no ${kind} ${name}`));
      return el("div", {}, title, kind === "tensor" ? tensorCard(row, model) : nodeCard(row, model));
    });
  }
  function detail() {
    const last = picked.at(-1), names = (kind) => picked.filter((one) => one.kind === kind).map((one) => one.name);
    const many = picked.length > 1 ? el("p", {}, `${names("node").length} nodes, ${names("tensor").length} tensors picked; the last: `) : "";
    put("#picked", many, ...(last ? card(last) : [el("p", { class: "note" }, "Pick a node or a pair to see what is known of it, and to edit it.")]));
    actions(last);
    edits();
  }

  // ---- edits
  async function ask(path, body) {
    const busy = setTimeout(() => put("#message", "working…"), 300);
    document.body.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Key": key }, body: JSON.stringify(body) });
      return await answer.json();
    } catch (error) {
      return { error: "the server does not answer", hint: `is \`qdqtool view\` still running? (${error.message})` };
    } finally { clearTimeout(busy); document.body.removeAttribute("aria-busy"); }
  }
  function say(text, isWrong = false) { $("#message").className = isWrong ? "wrong" : ""; put("#message", text); }
  async function change(path, body) {
    const found = await ask(path, body);
    if (found.error) { say(`${found.error}${found.hint ? ` (${found.hint})` : ""}`, true); return; }
    take(found);
    draw();
    detail();
    const last = state.edits.at(-1);
    say(path === "/edit" || path === "/mend" ? `${last.changes.length + last.more} changes: ${last.changes.slice(0, 3).join("; ")}` : path === "/undo" ? "taken back" : models[0].noise ? `SQNR ${digits(-10 * Math.log10(models[0].noise))} dB` : "measured");
  }
  const of = (kinds) => ({ tensors: kinds.includes("tensor") ? picked.filter((one) => one.kind === "tensor").map((one) => one.name) : [], nodes: kinds.includes("node") ? picked.filter((one) => one.kind === "node").map((one) => one.name) : [], selectors: [] });
  const edit = (command, options, on = of(["tensor", "node"])) => change("/edit", { command, options, ...on });
  const button = (text, click, help) => el("button", { type: "button", title: help, click }, text);
  const numbers = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
  const quoted = (text) => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
  function actions(last) {
    const row = last?.kind === "tensor" ? models[0].byTensor.get(last.name) : undefined, isConstant = row && row.k !== "activation";
    const scale = el("input", { type: "text", id: "scale", value: row && /scale/.test(row.g ?? "") ? scaleOf(row) : "", "aria-label": "Scale" }), zero = el("input", { type: "text", id: "zero", placeholder: "zero point", "aria-label": "Zero point" });
    const type = el("select", { id: "type", "aria-label": "Type" }, ...["int16", "uint16", "int8", "uint8", "int4", "uint4", "int32"].map((name) => el("option", {}, name)));
    const free = el("input", { type: "text", class: "wide", id: "passes", placeholder: 'remove-qdq{select="op:Softmax"}', "aria-label": "Passes" });
    const rough = el("input", { type: "checkbox", id: "rough" }), moved = () => ({ count: 1, ...(rough.checked ? { allow_approximate: true } : {}) });
    const given = () => ({ scales: numbers(scale.value), ...(zero.value.trim() ? { zero_points: numbers(zero.value) } : {}), ...(isConstant && state.has_float ? { float_model: true } : {}) });
    const times = (factor) => edit("qdq set", { ...given(), scales: numbers(scale.value).map((each) => each * factor) });
    const any = picked.length > 0, nodes = of(["node"]).nodes;
    put("#actions", el("fieldset", { disabled: !any }, el("legend", {}, models.length > 1 ? `Edit ${models[0].label}` : "Edit"),
      el("div", { class: "row" }, button("Leave float", () => edit("qdq remove", {}), "qdq remove: of a node all that it reads and writes"), type, button("Convert", () => edit("qdq convert", { dtype: type.value }), "qdq convert --dtype")),
      el("div", { class: "row" }, scale, zero, button("Set", () => edit("qdq set", given()), "qdq set --scale --zero-point"), button("×2", () => times(2), "qdq set: a scale twice as large"), button("÷2", () => times(0.5), "qdq set: half the scale"), button("2^n", () => edit("qdq set", { round_pow2: true }), "qdq set --round-pow2")),
      el("div", { class: "row" }, button("Move up", () => edit("qdq move", { up: true, ...moved() }), "qdq move --up --steps 1"), button("Move down", () => edit("qdq move", { down: true, ...moved() }), "qdq move --down --steps 1"),
        el("label", { title: "qdq move --allow-approximate: also where numbers change" }, rough, " approximately too")),
      el("div", { class: "row" },
        button("Restore Relu", () => edit("opt", { pass: "restore-relu" }), "the pass restore-relu: where a zero point clamps at 0"), button("Share", () => edit("qdq share", {}), "qdq share: one pair for all readers"), button("Dedicate", () => edit("qdq dedicate", {}), "qdq dedicate: a pair for each reader")),
      el("div", { class: "row" }, button("Insert", () => edit("qdq insert", { ...given(), float_model: undefined, dtype: type.value }), "qdq insert with this scale and type"), button("Per channel", () => edit("qdq convert", { per_axis: true }), "qdq convert --per-axis: weights"), button("Symmetric", () => edit("qdq convert", { symmetric: true }), "qdq convert --symmetric"))),
    el("fieldset", {}, el("legend", {}, "Any passes"), el("div", { class: "row" }, free, button("Run", () => edit("opt", { text: free.value }, of([])), "opt -p"))),
    nodes.length ? el("p", { class: "note" }, "As options of quantize: ", el("code", {}, nodes.map((name) => `--exclude ${quoted(name)}`).join(" "))) : "");
  }
  const scaleOf = (row) => { const [, power, plain] = /scale (?:2\^(-?\d+)|([\d.e+-]+))/.exec(row.g) ?? []; return power !== undefined ? String(2 ** Number(power)) : plain ?? ""; };
  function edits() {
    const made = state.edits.map((one) => el("li", {}, el("code", {}, one.command), el("p", { class: "note" }, `${one.changes.length + one.more} changes: ${one.changes.slice(0, 3).join("; ")}${one.changes.length + one.more > 3 ? "; …" : ""}`)));
    const measure = state.can_measure && state.stale ? button("Measure again", () => change("/measure", {}), "prices, SQNR, placement and times of the model as it is edited") : "";
    put("#edits", el("h3", {}, "Edits made"), state.before ? el("p", { class: "note" }, `${state.before} passes were recorded before.`) : "", made.length ? el("ol", {}, ...made) : el("p", { class: "note" }, "None yet."),
      el("div", { class: "row" }, made.length ? button("Undo the last", () => change("/undo", {})) : "", " ", measure), state.replay ? el("p", {}, "All of them again: ", el("code", { id: "replay" }, state.replay)) : "");
    put("#summary", el("table", {}, el("tbody", {}, ...state.summary.map(([what, texts]) => el("tr", {}, el("th", { scope: "row" }, what), ...texts.map((text) => el("td", { class: isChanged(texts) && "differs" }, text)))))));
  }

  // ---- the page
  take(state);
  put("#title", models.map((model) => model.label).join(" · "));
  const has = (shown) => models.some((model) => model.nodes.some((node) => shown.get(node) !== undefined));
  put("#metric", ...Object.entries(COLOURS).filter(([name, shown]) => name === metric || (has(shown) && (name !== "changes" || models.length > 1))).map(([name, shown]) => el("option", { value: name, selected: name === metric }, shown.title)));
  $("#metric").addEventListener("change", () => { metric = $("#metric").value; draw(); });
  $("#find").addEventListener("keydown", async (event) => {
    if (event.key !== "Enter" || !$("#find").value.trim()) return;
    const found = await ask("/select", { text: $("#find").value.trim() });
    if (found.error) { say(`${found.error}${found.hint ? ` (${found.hint})` : ""}`, true); return; }
    const isTensors = /(^|&)!*(tensor|in|io):/.test($("#find").value);
    picked = isTensors ? found.tensors.map((name) => ({ kind: "tensor", name })) : found.nodes.map((name) => ({ kind: "node", name }));
    say(`${found.nodes.length} nodes, ${found.tensors.length} quantized tensors`);
    remark();
    reveal();
  });
  const resize = (factor) => { zoom = Math.min(2, Math.max(0.2, zoom * factor)); panes.forEach((each) => { each.box.scrollTop *= factor; show(each); }); };
  $("#smaller").addEventListener("click", () => resize(0.8));
  $("#larger").addEventListener("click", () => resize(1.25));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) { event.preventDefault(); $("#find").focus(); }
  });
  addEventListener("resize", () => panes.forEach((each) => { each.drawn.clear(); each.picture.replaceChildren(); show(each); overview(each); }));
  draw();
  detail();
})();
