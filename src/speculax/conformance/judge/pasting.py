"""A call of the contract, rewritten as a call of the function itself."""

import re

from speculax.conformance.judge.adapter import Form


def in_own_words(snippet: str, form: Form) -> str:
    """The pasteable call of a verifier with the arguments that the function has.

    Args:
        snippet: Python that ends with a call by keywords, one a line.
        form: How the function is called.
    """
    head, call, body = re.split(r"^(\S+)\($", snippet, maxsplit=1, flags=re.MULTILINE)
    values = dict(re.findall(r"^    (\w+)=(.*),$", body, flags=re.MULTILINE))
    lines = [f"{role} = {value}" for role, value in values.items()]
    row = "" if form.has_batch else "[b]"
    arguments = {form.mapping.names.get(role, role): f"{role}{row}" for role in values}
    if form.mapping.is_joint:
        module = values["accept_uniforms"].partition(".")[0]
        lines.append(f"uniforms = {module}.column_stack([accept_uniforms, sample_uniforms])")
        del arguments["sample_uniforms"]
        arguments[form.mapping.names["accept_uniforms"]] = f"uniforms{row}"
    sizes = {"G": "draft_tokens.shape[1]", "V": "target_probs.shape[2]"}
    arguments |= {name: sizes[which] for name, which in form.mapping.numbers.items()}
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    shown = f"{call}({given})"
    if not form.has_batch:
        shown = f"[{shown} for b in range(len(draft_tokens))]"
    return "\n".join([*head.splitlines(), *lines, "", f"print({shown})"])
