"""The text of one tool file, parsed: its names, its functions, what each expression refers to.

Names are looked up in the whole file, not scope by scope: who imports two modules under one name in
one tool file is read as if the last import were meant.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cached_property

__all__ = ["Function", "SourceFile", "is_main_block", "own_nodes"]

Function = ast.FunctionDef | ast.AsyncFunctionDef

_IGNORE = re.compile(r"#\s*runner:\s*ignore\[([\w\-, ]+)\]")
_BUILTINS = frozenset(dir(builtins))


class SourceFile:
    """One parsed file.

    Args:
        text: Its text.
        identity: The parameter of tools that is filled in with who calls.

    Raises:
        SyntaxError: The text is not Python.
        ValueError: The text holds a NUL character.
    """

    def __init__(self, text: str, *, identity: str) -> None:
        self.text = text
        self.identity = identity
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """What contains each node."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """Functions that can be meant by a bare name, so no methods. Several where a name is taken twice."""
        found: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, Function) and not isinstance(self.parents[node], ast.ClassDef):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes by name."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """What each imported name means: `pd` → `pandas`, `Path` → `pathlib.Path`."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    found[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    @cached_property
    def _taken(self) -> set[str]:
        """Names that the file gives a meaning of its own at its top level."""
        stored = {
            node.id
            for statement in self.tree.body
            if not isinstance(statement, ast.ClassDef | Function)
            for node in own_nodes(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return stored | set(self.functions) | set(self.classes)

    @cached_property
    def ignored(self) -> dict[int, set[str]]:
        """Rules that a comment on a line waives, by line."""
        found = {}
        for number, line in enumerate(self.text.splitlines(), start=1):
            if match := _IGNORE.search(line):
                found[number] = {name.strip() for name in match[1].split(",")}
        return found

    def dotted(self, expression: ast.AST | None) -> str | None:
        """Return the full name of something imported or built in, as `os.path.join`; else None."""
        if isinstance(expression, ast.Name):
            if expression.id in self.imports:
                return self.imports[expression.id]
            known = expression.id in _BUILTINS and expression.id not in self._taken
            return expression.id if known else None
        if isinstance(expression, ast.Attribute):
            inner = self.dotted(expression.value)
            return f"{inner}.{expression.attr}" if inner else None
        return None

    def function_around(self, node: ast.AST) -> Function | None:
        """Return the innermost function that contains a node."""
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, Function):
            parent = self.parents.get(parent)
        return parent

    def at_import(self) -> Iterator[ast.AST]:
        """Yield every node that runs when the file is imported."""
        return own_nodes(self.tree)


def own_nodes(root: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `root` that run with it: not the bodies of functions it only defines."""
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Function) and node is not root:
            waiting += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.Lambda) and node is not root:
            continue
        else:
            waiting += [child for child in ast.iter_child_nodes(node) if not is_main_block(child)]


def is_main_block(node: ast.AST) -> bool:
    """Say whether it is `if __name__ == "__main__":` or `if TYPE_CHECKING:`, which no import runs."""
    if not isinstance(node, ast.If):
        return False
    names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
    types = {part.attr for part in ast.walk(node.test) if isinstance(part, ast.Attribute)}
    return bool({"__name__", "TYPE_CHECKING"} & (names | types))
