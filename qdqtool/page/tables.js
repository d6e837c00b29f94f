// Tables of rows that are sorted by any column and hidden by a filter; a row's facts are what a filter may look for.
const tablesOf = ({ el }) => {
  function table({ title, columns, rows, sort = 0, down = true }) {
    const body = el("tbody"),
      heads = [];
    const lines = rows.map((row) => {
      const css = (column) =>
        [column.number && "number", column.long && "long", column.differs?.(row) && "differs"].filter(Boolean).join(" ");
      const cells = columns.map((column) =>
        el("td", { class: css(column) || undefined }, column.show ? column.show(row) : (column.get(row) ?? "")),
      );
      return { row, line: el("tr", {}, ...cells) };
    });
    const empty = (value) => value === undefined || value === null || value === "";
    const order = (at, isDown) => {
      const get = columns[at].get,
        sign = isDown ? -1 : 1;
      lines.sort((a, b) => {
        const [x, y] = [get(a.row), get(b.row)];
        if (empty(x) || empty(y)) return empty(x) - empty(y);
        return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
      });
      body.append(...lines.map((each) => each.line));
      heads.forEach((head, number) =>
        head.setAttribute("aria-sort", number !== at ? "none" : isDown ? "descending" : "ascending"),
      );
      rove();
    };
    const shown = () =>
      lines
        .filter((each) => !each.line.hidden)
        .map((each) => each.line.querySelector("a"))
        .filter(Boolean);
    const rove = () =>
      shown().forEach((a, number) => {
        a.tabIndex = number ? -1 : 0;
      });
    columns.forEach((column, at) =>
      heads.push(
        el(
          "th",
          { scope: "col", title: column.help },
          el(
            "button",
            { type: "button", click: () => order(at, heads[at].getAttribute("aria-sort") !== "descending") },
            column.title,
          ),
        ),
      ),
    );
    body.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key],
        all = shown(),
        at = all.indexOf(document.activeElement);
      if (step && at >= 0 && all[at + step]) {
        event.preventDefault();
        all[at + step].focus();
      }
    });
    order(sort, down);
    const test = (matches) => {
      for (const each of lines) each.line.hidden = !matches(each.row.facts);
      rove();
      return shown().length;
    };
    return {
      test,
      part: el(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
        el("table", {}, el("caption", {}, title), el("thead", {}, el("tr", {}, ...heads)), body),
      ),
    };
  }
  const KEYS = ["tensor", "node", "op", "kind", "cause", "verdict", "device", "pass"];
  function matcher(text) {
    const terms = (text.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? [])
      .filter((term) => term !== "&")
      .map((term) => {
        const not = term.startsWith("!"),
          word = (not ? term.slice(1) : term).replaceAll('"', "").toLowerCase();
        const key = KEYS.find((each) => word.startsWith(`${each}:`));
        if (!key)
          return (facts) =>
            not !==
            Object.values(facts)
              .flat()
              .some((fact) => fact?.toLowerCase().includes(word));
        const pattern = word
          .slice(key.length + 1)
          .replace(/[.+?^${}()|[\]\\]/g, "\\$&")
          .replaceAll("*", ".*");
        const whole = new RegExp(key === "cause" ? `(^|\\s)${pattern}$` : `^${pattern}$`, "s");
        return (facts) => not !== facts[key].some((fact) => fact !== undefined && whole.test(fact.toLowerCase()));
      });
    return (facts) => terms.every((term) => term(facts));
  }
  return { table, matcher };
};
