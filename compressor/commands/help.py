"""What `--help` shows: an example, then the options in panels; plain text, 80 columns, no cuts."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from typer.core import TyperCommand, TyperGroup

from compressor.errors import UsageError, did_you_mean

GENERAL = "General"
_NO_PANELS = 12  # options that need no panels to be found among
_WIDTH = 74  # of an example, within 80 columns
# What may be looked for by the name of what a model does.
_ANSWERED = ("summarize", "generate", "rerank", "rank", "embed", "encode", "tag", "label", "answer")
_TYPES = {
    "<str>": "<text>", "<list[str]>": "<text>", "<float>": "<number>", "<int>": "<number>",
    "<list[path]>": "<path>",
}  # fmt: skip


class CommandHelp(TyperCommand):
    """A command whose help begins with its example, kept as Typer's epilog."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS]` and the names of arguments, in brackets where they may be left out."""
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        names = (_argument(p) if p.required else f"[{_argument(p)}]" for p in arguments)
        return ["[OPTIONS]", *names]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The description, then the example."""
        super().format_help_text(ctx, formatter)
        if self.epilog:
            with formatter.section("Example"):
                formatter.write(f"{example(self.epilog)}\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The example stands at the top."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The options in panels."""
        for panel, rows in panels(self, ctx):
            with formatter.section(panel):
                formatter.write_dl(rows, col_max=26)


class GroupHelp(TyperGroup):
    """A command with commands, whose descriptions are shown whole."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; `UsageError` for an unknown one, with what does it."""
        name, path = args[0], ctx.command_path
        if name not in self.commands and not name.startswith("-"):
            advice = did_you_mean(name, self.commands)
            if name in _ANSWERED:
                advice = "; `compress predict DIR` answers lines with any artifact"
            raise UsageError(
                f"there is no command `{path} {name}`{advice}; `{path} --help` lists the commands",
                id="command-unknown",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Names of commands with the first paragraphs of their descriptions."""
        rows = []
        for name, command in self.commands.items():
            paragraph = (command.help or "").split("\n\n")[0]
            rows.append((name, " ".join(paragraph.split())))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def example(line: str) -> str:
    """A command line, broken before an option where 80 columns ask for it, as a shell reads it."""
    lines = [""]
    for part in line.replace(" -", "\n-").splitlines():
        if len(lines[-1]) + len(part) > _WIDTH:
            lines.append("    ")
        lines[-1] += f" {part}"
    return " \\\n".join(f" {line}" for line in lines)


def panels(command: Any, ctx: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    """A command's arguments and options: (panel, rows of name and help), in declared order."""
    parameters = command.get_params(ctx)
    arguments = [
        (_argument(p), str(p.get_help_record(ctx)[1]))
        for p in parameters
        if p.param_type_name == "argument"
    ]
    options = [p for p in parameters if p.param_type_name == "option"]
    shown = [("Arguments", arguments)] if arguments else []
    if len(options) <= _NO_PANELS:
        return [*shown, ("Options", [_row(p, ctx) for p in options])]
    by_panel = groupby(options, lambda p: getattr(p, "rich_help_panel", None) or GENERAL)
    return shown + [(name, [_row(p, ctx) for p in group]) for name, group in by_panel]


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _row(parameter: Any, ctx: Any) -> tuple[str, str]:
    """`--[no-]verify`, `-b, --batch-size <text>`, and its help."""
    names, text = parameter.get_help_record(ctx)
    if parameter.secondary_opts:
        return f"--[no-]{parameter.opts[0].removeprefix('--')}", text
    for theirs, ours in _TYPES.items():
        names = names.replace(theirs, ours)
    return names, text
