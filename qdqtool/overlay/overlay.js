// The page of `view --overlay`: graphs in the colours of a metric, what is picked, and its edits. What the page shows is what the
// server last said; an edit asks the server, which runs the command and answers with all that is new.
(() => {
  let state = JSON.parse(document.getElementById("data").textContent);
  const key = state.key;
  const anchor = (kind, name) =>
    el(
      "a",
      {
        href: "#",
        click: (event) => {
          event.preventDefault();
          pick(kind, name, event.shiftKey);
          reveal();
        },
      },
      name,
    );
  const parts = partsOf({ levels: state.levels, anchor, make: (name, kind) => change("/mend", { name, kind }) });
  const { $, el, put, digits, isChanged, prepared, tensorCard, nodeCard } = parts;
  const differs = (name) => apart.has(name);
  const COLOURS = coloursOf(parts, differs);
  let models,
    apart,
    metric = state.metric,
    picked = [];
  const isPicked = (kind, name) => picked.some((one) => one.kind === kind && one.name === name);
  const heading = (number, model) => {
    const edited = number === 0 && (state.edits.length || state.before) ? ", edited" : "";
    const when = state.stale && number === 0 ? " before the edits" : "";
    return `${model.label}${edited}${model.noise ? `: SQNR ${digits(-10 * Math.log10(model.noise))} dB${when}` : ""}`;
  };
  const { at, draw, reveal, resize, redraw } = panesOf(parts, {
    heading,
    isPicked,
    differs,
    pick: (...asked) => pick(...asked),
    last: () => picked.at(-1),
    models: () => models,
    shown: () => COLOURS[metric],
  });

  function take(next) {
    state = next;
    models = state.models.map(prepared);
    for (const model of models) {
      for (const node of model.graph.nodes) {
        // inputs and outputs of the graph are no nodes of the record
        if (!model.byNode.has(node.n))
          model.byNode.set(node.n, { n: node.n, op: node.op, own: model.tensors.filter((tensor) => tensor.o === node.n) });
      }
    }
    const grids = new Map();
    models.forEach((model, number) => {
      for (const row of model.tensors) (grids.get(row.n) ?? grids.set(row.n, []).get(row.n))[number] = row.g;
      for (const node of model.graph.nodes) (grids.get(node.n) ?? grids.set(node.n, []).get(node.n))[number] ??= node.op;
    });
    apart = new Set(
      [...grids]
        .filter(([, each]) => models.length > 1 && (isChanged(each) || models.some((_, number) => each[number] === undefined)))
        .map(([name]) => name),
    );
    picked = picked.filter(({ kind, name }) =>
      models.some((model) => (kind === "tensor" ? model.byTensor : model.byNode).has(name)),
    );
  }

  // ---- what is picked
  function pick(kind, name, isMore, paneNumber, place) {
    const was = isPicked(kind, name);
    picked = isMore ? picked.filter((one) => one.kind !== kind || one.name !== name) : [];
    if (!was || !isMore) picked.push({ kind, name });
    if (place !== undefined) Object.assign(at, { pane: paneNumber, node: place });
    remark();
    if (paneNumber !== undefined && models.length > 1) reveal(paneNumber);
  }
  function remark() {
    document.querySelectorAll("[data-node], [data-tensor]").forEach((one) => {
      const isNode = one.dataset.tensor === undefined,
        is = isPicked(isNode ? "node" : "tensor", isNode ? one.dataset.node : one.dataset.tensor);
      one.classList.toggle("picked", is);
      if (isNode) {
        one.setAttribute("aria-selected", String(is));
        one.classList.toggle("at", one.id === `m${at.pane}-n${at.node}`);
      }
    });
    detail();
  }
  function card({ kind, name }) {
    return models.map((model) => {
      const row = (kind === "tensor" ? model.byTensor : model.byNode).get(name),
        title = models.length > 1 ? el("h4", {}, model.label) : "";
      if (!row) return el("article", {}, title, el("p", { class: "note" }, `has no ${kind} ${name}`));
      return el("div", {}, title, kind === "tensor" ? tensorCard(row, model) : nodeCard(row, model));
    });
  }
  function detail() {
    const last = picked.at(-1),
      names = (kind) => picked.filter((one) => one.kind === kind).map((one) => one.name);
    const many =
      picked.length > 1 ? el("p", {}, `${names("node").length} nodes, ${names("tensor").length} tensors picked; the last: `) : "";
    put(
      "#picked",
      many,
      ...(last ? card(last) : [el("p", { class: "note" }, "Pick a node or a pair to see what is known of it, and to edit it.")]),
    );
    const { activeElement } = document,
      named = (one) => one.id || one.textContent,
      held = activeElement.closest("#actions, #edits") && named(activeElement);
    actions(last);
    edits();
    // what had the focus was made anew
    if (held)
      [...$("#detail").querySelectorAll("button, input, select")]
        .find((one) => named(one) === held)
        ?.focus({ preventScroll: true });
  }

  // ---- edits
  async function ask(path, body) {
    const busy = setTimeout(() => put("#message", "working…"), 300);
    document.body.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Key": key },
        body: JSON.stringify(body),
      });
      return await answer.json();
    } catch (error) {
      return { error: "the server does not answer", hint: `is \`qdqtool view\` still running? (${error.message})` };
    } finally {
      clearTimeout(busy);
      document.body.removeAttribute("aria-busy");
    }
  }
  function say(text, isWrong = false) {
    $("#message").className = isWrong ? "wrong" : "";
    put("#message", text);
  }
  let isBusy = false; // a second click before the answer is not meant for what comes after it
  async function change(path, body) {
    if (isBusy) return;
    isBusy = true;
    const found = await ask(path, body);
    isBusy = false;
    if (found.error) {
      say(`${found.error}${found.hint ? ` (${found.hint})` : ""}`, true);
      return;
    }
    take(found);
    draw();
    detail();
    const last = state.edits.at(-1);
    say(
      path === "/edit" || path === "/mend"
        ? `${last.changes.length + last.more} changes: ${last.changes.slice(0, 3).join("; ")}`
        : path === "/pick"
          ? `kept for quantize: ${last.command}`
          : path === "/undo"
          ? "taken back"
          : models[0].noise
            ? `SQNR ${digits(-10 * Math.log10(models[0].noise))} dB`
            : "measured",
    );
  }
  const isBorder = (name) => ["input", "output"].includes(models[0].byNode.get(name)?.op); // a tensor that is drawn as a node
  const kindOf = ({ kind, name }) => (kind === "node" && !isBorder(name) ? "node" : "tensor");
  const of = (kinds) => {
    const names = (kind) => (kinds.includes(kind) ? picked.filter((one) => kindOf(one) === kind).map((one) => one.name) : []);
    return { tensors: [...new Set(names("tensor"))], nodes: names("node"), selectors: [] };
  };
  const keep = (option) => change("/pick", { option, ...of(["tensor", "node"]) });
  const edit = (command, options, on = of(["tensor", "node"])) => change("/edit", { command, options, ...on });
  const button = (text, click, help) => el("button", { type: "button", title: help, click }, text);
  function actions(last) {
    const row = last?.kind === "tensor" ? models[0].byTensor.get(last.name) : undefined,
      isConstant = row && row.k !== "activation";
    const scale = el("input", {
        type: "text",
        id: "scale",
        value: picked.length === 1 ? scaleOf(row) : "",
        "aria-label": "Scale",
      }),
      zero = el("input", { type: "text", id: "zero", placeholder: "zero point", "aria-label": "Zero point" });
    const type = el(
      "select",
      { id: "type", "aria-label": "Type" },
      ...["int16", "uint16", "int8", "uint8", "int4", "uint4", "int32"].map((name) =>
        el("option", { selected: name === $("#type")?.value }, name),
      ),
    );
    const free = el("input", {
      type: "text",
      class: "wide",
      id: "passes",
      value: $("#passes")?.value,
      placeholder: 'remove-qdq{select="op:Softmax"}',
      "aria-label": "Passes",
    });
    const rough = el("input", { type: "checkbox", id: "rough", checked: $("#rough")?.checked }),
      moved = () => ({ count: 1, ...(rough.checked ? { allow_approximate: true } : {}) });
    const given = () => ({
      scales: numbers(scale.value),
      ...(zero.value.trim() ? { zero_points: numbers(zero.value) } : {}),
      ...(isConstant && state.has_float ? { float_model: true } : {}),
    });
    const times = (factor) => {
      if (picked.length === 1 && scaleOf(row))
        edit("qdq set", { ...given(), scales: numbers(scale.value).map((each) => each * factor) });
      else say("that is for one pair with one scale; pick one, or write its scale and Set", true);
    };
    const isHere = ({ kind, name }) => (kind === "tensor" ? models[0].byTensor : models[0].byNode).has(name),
      any = picked.some(isHere),
      nodes = of(["node"]).nodes;
    put(
      "#actions",
      el(
        "fieldset",
        { disabled: !any },
        el("legend", {}, models.length > 1 ? `Edit ${models[0].label}` : "Edit"),
        picked.length && !any ? el("p", { class: "note" }, `Not in ${models[0].label}, the model that is edited.`) : "",
        el(
          "div",
          { class: "row" },
          button("Leave float", () => edit("qdq remove", {}), "qdq remove: of a node all that it reads and writes"),
          type,
          button("Convert", () => edit("qdq convert", { dtype: type.value }), "qdq convert --dtype"),
        ),
        el(
          "div",
          { class: "row" },
          scale,
          zero,
          button("Set", () => edit("qdq set", given()), "qdq set --scale --zero-point"),
          button("×2", () => times(2), "qdq set: a scale twice as large"),
          button("÷2", () => times(0.5), "qdq set: half the scale"),
          button("2^n", () => edit("qdq set", { round_pow2: true }), "qdq set --round-pow2"),
        ),
        el(
          "div",
          { class: "row" },
          button("Move up", () => edit("qdq move", { up: true, ...moved() }), "qdq move --up --steps 1"),
          button("Move down", () => edit("qdq move", { down: true, ...moved() }), "qdq move --down --steps 1"),
          el("label", { title: "qdq move --allow-approximate: also where numbers change" }, rough, " approximately too"),
        ),
        el(
          "div",
          { class: "row" },
          button(
            "Restore Relu",
            () => edit("opt", { pass: "restore-relu" }),
            "the pass restore-relu: where a zero point clamps at 0",
          ),
          button("Share", () => edit("qdq share", {}), "qdq share: one pair for all readers"),
          button("Dedicate", () => edit("qdq dedicate", {}), "qdq dedicate: a pair for each reader"),
        ),
        el(
          "div",
          { class: "row" },
          button(
            "Insert",
            () => edit("qdq insert", { ...given(), float_model: undefined, dtype: type.value }),
            "qdq insert with this scale and type",
          ),
          button("Per channel", () => edit("qdq convert", { per_axis: true }), "qdq convert --per-axis: weights"),
          button("Symmetric", () => edit("qdq convert", { symmetric: true }), "qdq convert --symmetric"),
        ),
      ),
      el(
        "fieldset",
        {},
        el("legend", {}, "Any passes"),
        el(
          "div",
          { class: "row" },
          free,
          button("Run", () => edit("opt", { text: free.value }, of([])), "opt -p"),
        ),
      ),
      picked.length
        ? el(
            "div",
            { class: "row" },
            "For quantize: ",
            ...["exclude", "int16", "float"].map((option) =>
              button(`--${option}`, () => keep(option), "kept under [quantize] of the script, which quantize --picks reads"),
            ),
            nodes.length ? el("code", {}, nodes.map((name) => `--exclude ${quoted(literal(name))}`).join(" ")) : "",
          )
        : "",
    );
  }
  function edits() {
    const made = state.edits.map((one) =>
      el(
        "li",
        {},
        el("code", {}, one.command),
        el(
          "p",
          { class: "note" },
          one.is_option
            ? "kept for quantize --picks; this model stays as it is"
            : `${one.changes.length + one.more} changes: ${one.changes.slice(0, 3).join("; ")}${one.changes.length + one.more > 3 ? "; …" : ""}`,
        ),
      ),
    );
    const measure =
      state.can_measure && state.stale
        ? button("Measure again", () => change("/measure", {}), "prices, SQNR, placement and times of the model as it is edited")
        : "";
    put(
      "#edits",
      el("h3", {}, "Edits made"),
      state.before ? el("p", { class: "note" }, `${state.before} passes were recorded before: `, el("code", {}, state.begun)) : "",
      made.length ? el("ol", {}, ...made) : el("p", { class: "note" }, "None yet."),
      el("div", { class: "row" }, made.length ? button("Undo the last", () => change("/undo", {})) : "", " ", measure),
      state.replay
        ? el(
            "p",
            {},
            state.kept
              ? "All of them again: "
              : "All of them again, while this page is served (--record FILE keeps the script): ",
            el("code", { id: "replay" }, state.replay),
          )
        : "",
      state.anew ? el("p", {}, "Quantized again with what was kept: ", el("code", { id: "anew" }, state.anew)) : "",
    );
    put(
      "#summary",
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          ...state.summary.map(([what, texts]) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, what),
              ...texts.map((text) => el("td", { class: isChanged(texts) && "differs" }, text)),
            ),
          ),
        ),
      ),
    );
  }

  // ---- the page
  take(state);
  put("#title", models.map((model) => model.label).join(" · "));
  const has = (shown) => models.some((model) => model.nodes.some((node) => shown.get(node) !== undefined));
  put(
    "#metric",
    ...Object.entries(COLOURS)
      .filter(([name, shown]) => name === metric || (has(shown) && (name !== "changes" || models.length > 1)))
      .map(([name, shown]) => el("option", { value: name, selected: name === metric }, shown.title)),
  );
  $("#metric").addEventListener("change", () => {
    metric = $("#metric").value;
    draw();
  });
  $("#find").addEventListener("keydown", async (event) => {
    if (event.key !== "Enter" || !$("#find").value.trim()) return;
    const found = await ask("/select", { text: $("#find").value.trim() });
    if (found.error) {
      say(`${found.error}${found.hint ? ` (${found.hint})` : ""}`, true);
      return;
    }
    if (!found.nodes.length && !found.tensors.length) {
      say("that is not drawn: it stands in a body of If or Loop, or is a float constant; the Netron page shows it", true);
      return;
    }
    const isTensors = found.tensors.length && /(^|&)!*(tensor|in|io):/.test($("#find").value);
    picked = isTensors
      ? found.tensors.map((name) => ({ kind: "tensor", name }))
      : found.nodes.map((name) => ({ kind: "node", name }));
    say(`${found.nodes.length} nodes, ${found.tensors.length} quantized tensors`);
    remark();
    reveal();
  });
  $("#smaller").addEventListener("click", () => resize(0.8));
  $("#larger").addEventListener("click", () => resize(1.25));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) {
      event.preventDefault();
      $("#find").focus();
    }
  });
  addEventListener("resize", redraw);
  draw();
  detail();
})();
