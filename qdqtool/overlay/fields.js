// What stands in the fields of an edit and in its commands: scales as they are written, names for a shell and as selectors.
const numbers = (text) =>
  text
    .split(/[\s,]+/)
    .filter(Boolean)
    .map((word) => {
      const [, power] = /^2\^(-?\d+)$/.exec(word) ?? [],
        number = power === undefined ? Number(word) : 2 ** Number(power);
      return Number.isFinite(number) ? number : word; // a word is refused in the words of the command
    });
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
// The selector of a node of this name and no other, as the command reads it.
const literal = (name) =>
  /^[!-]|:/.test(name)
    ? `re:^${name.replace(/[\\^$.*+?()[\]{}|&-]/g, "\\$&")}$`
    : name.replace(/[*?[]/g, "[$&]").replaceAll("&", "\\&");
const scaleOf = (row) => {
  const [, power, plain] = /scale (?:2\^(-?\d+)|([\d.e+-]+))/.exec(row?.g ?? "") ?? [];
  return power !== undefined ? String(2 ** Number(power)) : (plain ?? "");
};
