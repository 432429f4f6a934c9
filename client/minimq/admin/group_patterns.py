"""The deletion of all consumer groups whose names match a pattern."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from minimq_common.errors import GroupNotFound, MinimqError
from minimq_common.names import check_group
from minimq_common.text_units import count_of

if TYPE_CHECKING:
    from minimq.admin.admin import Admin
    from minimq_common.model import OfflineBroker

DELETE_ON_OTHERS = "delete on the others with force (--force)"


def is_pattern(group: str) -> bool:
    """Return whether a text is a pattern, and not a name."""
    return "*" in group


def matching_groups(admin: Admin, pattern: str) -> list[str]:
    """Return the groups that match a pattern, sorted. Raises `GroupNotFound` if there are none."""
    check_group(pattern.replace("*", "x"))
    # Without the other special characters of `fnmatch`, which no name has.
    found = [name for name in admin.list_groups() if fnmatchcase(name, pattern)]
    if not found:
        raise GroupNotFound(f"no group matches {pattern}: `minimq group list`")
    return found


def delete_matching(
    admin: Admin, pattern: str, *, dead_letters: bool, force: bool, wait: bool
) -> tuple[OfflineBroker, ...]:
    """Delete the matching groups one by one; return the offline brokers. Raises as `Admin.delete_group`."""
    offline: dict[OfflineBroker, None] = {}
    groups = matching_groups(admin, pattern)
    for number, group in enumerate(groups):
        is_last = number == len(groups) - 1
        try:
            offline |= dict.fromkeys(
                admin.delete_group(group, dead_letters=dead_letters, force=force, wait=wait and is_last)
            )
        except GroupNotFound:  # another command, or its expiry, was faster
            continue
        except MinimqError as error:
            raise error.with_message(
                f"{number} of {count_of(len(groups), 'group')} were deleted, the others are left: {error.message}"
            ) from None
    return tuple(offline)
