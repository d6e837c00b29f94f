"use strict";
// What pages are made of: elements, figures in words, histograms and cards. Names reach a page as text alone (textContent,
// setAttribute), never as HTML. A page says how its histograms are written (levels) and where a name leads (anchor).
// Where edits can be made, make(name, kind) does one.
const partsOf = ({ levels, anchor, make }) => {
  const $ = (query) => document.querySelector(query);
  const fill = (tag, attributes, kids) => {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (typeof value === "function") tag.addEventListener(name, value);
      else if (value !== undefined && value !== false) tag.setAttribute(name, value === true ? "" : value);
    }
    tag.append(...kids.flat().filter((kid) => kid !== undefined && kid !== null && kid !== ""));
    return tag;
  };
  const el = (name, attributes, ...kids) => fill(document.createElement(name), attributes, kids);
  const svg = (name, attributes, ...kids) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, kids);
  const put = (where, ...kids) => (typeof where === "string" ? $(where) : where).replaceChildren(...kids.flat().filter(Boolean));

  const digits = (number, count = 4) =>
    number === undefined || number === null ? "" : String(Number(Number(number).toPrecision(count)));
  const percent = (share) => (share === undefined || share === null ? "" : `${digits(100 * share, 3)} %`);
  const total = (model, row) => 10 * Math.log10(Math.max((row.s ?? 0) * model.noise, 1e-30));
  const dearest = (row) => Object.entries(row.p ?? {}).sort((a, b) => b[1] - a[1])[0]?.[0] ?? "";
  const bytes = (count) =>
    count === undefined ? "" : count < 1e6 ? `${digits(count / 1e3, 3)} kB` : `${digits(count / 1e6, 3)} MB`;
  const interval = (us) => (us ? `${digits(us[0])} µs (80 %: ${digits(us[1])} to ${digits(us[2])})` : "");
  const isChanged = (values) => new Set(values.filter((value) => value !== undefined && value !== "")).size > 1;

  // Rows know each other: tensors of a node, the node of a tensor, and what a filter may look for.
  function prepared(model) {
    model.byTensor = new Map(model.tensors.map((row) => [row.n, row]));
    model.byNode = new Map(model.nodes.map((row) => [row.n, row]));
    model.told = (kind, name) => model.advice.find((one) => one.kind === kind && one.n === name);
    const owned = Map.groupBy(model.tensors, (tensor) => tensor.o);
    for (const row of model.nodes) {
      const own = owned.get(row.n) ?? [];
      const costs = [row, ...own].map((each) => each.s).filter((share) => share !== undefined);
      row.price = costs.length ? costs.reduce((a, b) => a + b) : undefined;
      row.own = own;
      const told = [model.told("node", row.n)?.c, ...own.map((tensor) => model.told("tensor", tensor.n)?.c)];
      row.facts = {
        tensor: [...own.map((t) => t.n), ...(row.t ?? [])],
        node: [row.n],
        op: [row.op],
        kind: ["node"],
        verdict: [row.vd],
        cause: [...told, ...[row, ...own].map(dearest)],
        device: [row.d],
        pass: own.flatMap((t) => (t.m ?? []).map((m) => m[0])),
        more: [row.rs],
      };
    }
    for (const row of model.tensors) {
      const node = model.byNode.get(row.o),
        told = model.told("tensor", row.n);
      row.node = node;
      row.facts = {
        tensor: [row.n],
        node: [row.o],
        op: [node?.op],
        kind: [row.k],
        verdict: [node?.vd],
        cause: [told?.c, dearest(row)],
        device: [node?.d],
        pass: (row.m ?? []).map((move) => move[0]),
        more: [row.g],
      };
    }
    return model;
  }

  function histogram(row, wide = 340) {
    if (!row.h || !row.v) return el("p", { class: "note" }, "Its values are not known.");
    const [low, high] = row.v,
      [from, to, step] = row.r ?? [low, high, 0],
      span = Math.max(high - low, 1e-30),
      tall = 90;
    const left = Math.max(Math.min(low, from), low - 2 * span),
      right = Math.min(Math.max(high, to), high + 2 * span);
    const x = (value) => ((value - left) / Math.max(right - left, 1e-30)) * wide,
      bin = span / row.h.length;
    const bars = [...row.h].map((letter, at) => {
      const height = (levels.indexOf(letter) / (levels.length - 1)) * (tall - 14),
        middle = low + (at + 0.5) * bin;
      return height
        ? svg("rect", {
            class: middle < from || middle > to ? "out" : "bar",
            x: x(low + at * bin),
            y: tall - height,
            width: Math.max(x(left + bin) - 0.3, 0.6),
            height,
          })
        : null;
    });
    const steps = [];
    if (step && x(left + step) >= 4)
      for (let at = Math.max(from, left); at <= Math.min(to, right) * 1.0001; at += step)
        steps.push(svg("line", { class: "step", x1: x(at), x2: x(at), y1: 6, y2: tall }));
    const within = {
      x: x(Math.max(from, left)),
      y: 2,
      width: Math.max(x(Math.min(to, right)) - x(Math.max(from, left)), 1),
      height: tall - 2,
    };
    const told = `values ${digits(low)} to ${digits(high)}; grid ${digits(from)} to ${digits(to)} in steps of ${digits(step)}`;
    const used = step
      ? `, ${digits(Math.max(0, (Math.min(high, to) - Math.max(low, from)) / step), 3)} steps across the values`
      : "";
    return el(
      "figure",
      {},
      svg(
        "svg",
        { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `Histogram of ${row.n}: ${told}` },
        svg("rect", { class: "grid", ...within }),
        ...bars,
        ...steps,
        svg("rect", { class: "frame", ...within }),
      ),
      el("figcaption", {}, told + used),
    );
  }
  function stack(parts, label) {
    let at = 0;
    const pieces = parts.map(([cause, share]) =>
      svg(
        "rect",
        { class: `c-${cause}`, x: 100 * ((at += share) - share), y: 0, width: 100 * share, height: 10 },
        svg("title", {}, `${cause} ${percent(share)}`),
      ),
    );
    return el(
      "div",
      { class: "stack" },
      svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...pieces),
      el(
        "ul",
        { class: "legend" },
        ...parts.map(([cause, share]) => el("li", {}, el("span", { class: `swatch b-${cause}` }), `${cause} ${percent(share)}`)),
      ),
    );
  }
  const sign = (share) => Math.sqrt(Math.max(share, 0));
  const METRICS = {
    price: { title: "price at the outputs", get: (n) => n.price, show: (n) => percent(n.price), level: sign },
    here: {
      title: "SQNR here, float inputs",
      get: (n) => n.hd,
      show: (n) => (n.hd === undefined ? "" : `${digits(n.hd)} dB`),
      level: (v) => -v,
      what: "noise",
    },
    whole: {
      title: "SQNR with what came in",
      get: (n) => n.wd,
      show: (n) => (n.wd === undefined ? "" : `${digits(n.wd)} dB`),
      level: (v) => -v,
      what: "noise",
    },
    verdict: { title: "verdict", get: (n) => n.vd, show: (n) => n.vd ?? "" },
    us: { title: "time", get: (n) => n.us?.[0], show: (n) => interval(n.us), level: sign },
    bytes: { title: "bytes read and written", get: (n) => n.b, show: (n) => bytes(n.b), level: sign },
  };

  // The class of a value's colour: by how it lies between the least and the most, or by its word.
  const VERDICTS = ["npu-int", "npu-float", "fallback", "refused"];
  function colours(metric, rows) {
    const known = rows.map(metric.get).filter((value) => value !== undefined),
      scaled = metric.level ? known.map(metric.level) : [];
    const least = scaled.reduce((a, b) => Math.min(a, b), Infinity),
      most = scaled.reduce((a, b) => Math.max(a, b), -Infinity);
    const css = (row) => {
      const value = metric.get(row);
      if (value === undefined) return "none";
      return metric.level ? `q${Math.round((6 * (metric.level(value) - least)) / (most - least || 1))}` : `v-${value}`;
    };
    const words = metric.level
      ? [
          ["q0", "least"],
          ["q2", ""],
          ["q4", ""],
          ["q6", "most"],
        ]
      : (metric.words ?? VERDICTS).filter((v) => known.includes(v)).map((v) => [`v-${v}`, v]);
    const legend = [
      ...words.map(([name, text]) => el("span", {}, el("span", { class: `swatch ${name}` }), text)),
      el("span", { class: "note" }, metric.what ?? metric.title),
    ];
    return { css, legend };
  }

  const pairs = (...rows) =>
    el(
      "dl",
      {},
      ...rows
        .filter(([, value]) => value !== undefined && value !== "")
        .flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]),
    );
  function command(name, [kind, text, wins, note]) {
    const code = el("code", { tabindex: "0" }, text),
      done = el("span", { role: "status" });
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      put(done, " copied");
    };
    return el(
      "div",
      { class: "command" },
      el("strong", {}, `${wins > 0 ? "+" : ""}${digits(wins, 3)} dB`),
      code,
      make
        ? el("button", { type: "button", "aria-label": `Make this edit: ${kind}`, click: () => make(name, kind) }, "Make")
        : "",
      el("button", { type: "button", "aria-label": `Copy the command: ${kind}`, click: copy }, "Copy"),
      done,
      note ? el("p", { class: "note" }, note) : "",
    );
  }
  function edits(told) {
    if (!told) return [];
    const [best, ...others] = told.edits.map((edit) => command(told.n, edit));
    if (!best) return [el("p", { class: "note" }, "No edit of it that was tried wins anything.")];
    return [
      best,
      others.length
        ? el("details", {}, el("summary", {}, others.length > 1 ? `${others.length} other edits` : "another edit"), ...others)
        : "",
    ];
  }
  function tensorCard(row, model, level = "h3") {
    const told = model.told("tensor", row.n);
    const life = (row.m ?? []).map(([by, because, before, after]) =>
      el("li", {}, el("strong", {}, by), `: ${before ? `${before} → ` : ""}${after}${because && before ? `; ${because}` : ""}`),
    );
    return el(
      "article",
      {},
      el(level, {}, anchor("tensor", row.n)),
      histogram(row),
      pairs(
        ["kind", row.k],
        ["node", row.o && anchor("node", row.o)],
        [
          "price",
          row.s === undefined
            ? ""
            : `${percent(row.s)} of the noise${row.s > 0 ? `, ${digits(total(model, row), 3)} dB of the signal` : ""}`,
        ],
        ["why", told && `${told.c}: ${told.why}`],
        ["grid", row.g],
        ["clipped", row.cl ? percent(row.cl) : ""],
        ["its own SQNR", row.db === undefined ? "" : `${digits(row.db)} dB`],
      ),
      Object.keys(row.p ?? {}).length > 1
        ? stack(
            Object.entries(row.p).map(([cause, share]) => [cause, share / row.s]),
            `Causes of ${row.n}`,
          )
        : "",
      life.length ? el("div", {}, el("h4", {}, "Life of its grid"), el("ol", {}, ...life)) : "",
      ...edits(told),
    );
  }
  function nodeCard(row, model) {
    return el(
      "article",
      {},
      el("h3", {}, row.n),
      pairs(
        ["operator", row.op],
        ["price, with its tensors", percent(row.price)],
        ["SQNR here", METRICS.here.show(row)],
        ["with what came in", METRICS.whole.show(row)],
        ["verdict", row.vd],
        ["why", row.rs],
        ["device", row.d],
        ["time", interval(row.us)],
        ["reads and writes", bytes(row.b)],
        ["writes", (row.t ?? []).join(", ")],
      ),
      ...edits(model.told("node", row.n)),
      ...row.own.map((tensor) => tensorCard(tensor, model, "h4")),
    );
  }
  return {
    $,
    el,
    svg,
    put,
    digits,
    percent,
    total,
    dearest,
    bytes,
    interval,
    isChanged,
    prepared,
    histogram,
    stack,
    METRICS,
    colours,
    pairs,
    edits,
    tensorCard,
    nodeCard,
  };
};
