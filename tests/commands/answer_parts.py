"""Parts of answers as clients have them, where a type says that they may be absent or of another kind."""

from typing import Any

from fastmcp.client.client import CallToolResult
from mcp_types import BlobResourceContents, ContentBlock, TextContent, TextResourceContents

__all__ = ["blob_of", "contract_of", "meta_of", "plain_of", "structured_of", "text_of"]


def structured_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None
    return result.structured_content


def meta_of(result: CallToolResult) -> dict[str, Any]:
    assert result.meta is not None
    return result.meta


def contract_of(result: CallToolResult) -> Any:
    """Return the whole contract value, which stands in `_meta`."""
    return meta_of(result)["toolcell/result"]


def text_of(block: ContentBlock) -> str:
    assert isinstance(block, TextContent)
    return block.text


def blob_of(contents: TextResourceContents | BlobResourceContents) -> str:
    """Return the content of a binary resource, in Base64."""
    assert isinstance(contents, BlobResourceContents)
    return contents.blob


def plain_of(contents: TextResourceContents | BlobResourceContents) -> str:
    assert isinstance(contents, TextResourceContents)
    return contents.text
