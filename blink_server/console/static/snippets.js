// The request of the playground as it is sent from elsewhere. A key is never part of it.

/** A command for a POSIX shell. */
export function curl(origin, path, body, withKey) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const lines = [`curl -N ${origin}/${path}`, "-H 'Content-Type: application/json'"];
  if (withKey) lines.push('-H "Authorization: Bearer $BLINK_API_KEY"');
  return [...lines, `-d '${json}'`].join(" \\\n  ");
}

/** A program that uses OpenAI's package. */
export function python(origin, chat, body, withKey) {
  const { top_k: topK, ...others } = body;
  const fields = topK === undefined ? others : { ...others, extra_body: { top_k: topK } };
  const call = chat ? "chat.completions" : "completions";
  const key = withKey ? 'os.environ["BLINK_API_KEY"]' : '"none"';
  const text = chat ? "choice.delta.content" : "choice.text";
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${origin}/v1`)}, api_key=${key})`,
    `stream = client.${call}.create(`,
    ...Object.entries(fields).map(([name, value]) => `    ${name}=${literal(value, "    ")},`),
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    `        print(${text} or "", end="", flush=True)`,
    "print()",
  ].join("\n");
}

/** A value of JSON in Python. */
export function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => literal(item, deeper))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, deeper)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length + indent.length < 80 && !line.includes("\n")) return line;
  return `${open}\n${items.map((item) => `${deeper}${item},\n`).join("")}${indent}${close}`;
}
