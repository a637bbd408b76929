"""The verbs in identifiers of operations. Pure."""

from typing import Final

from app.apis.words import word_set

_READING: Final = word_set(
    "browse count describe download explain fetch filter find get inspect list preview query read retrieve search "
    "show view watch"
)
LISTING: Final = word_set("browse count filter find list query search")
CREATING: Final = word_set("add create insert post register")
CLEAR: Final = word_set(
    "accept acknowledge activate add append apply approve archive assign attach ban browse cancel clear complete "
    "configure confirm connect convert count create deactivate decline decrement delete deliver deny deploy "
    "deregister describe destroy detach disable disconnect dismiss dispatch download duplicate edit enable "
    "enqueue exec execute expire explain fetch filter finalize find finish follow generate get import increment "
    "initialize insert inspect install instantiate invalidate list mark merge migrate modify mute patch perform "
    "post prepare process promote provision prune publish purge push put read reboot rebuild recover recycle "
    "redeliver reduce refresh reject reload remove rename render renew reopen reorder replace replicate requeue "
    "rerun resend resize resolve restart restore resume retrieve retry revert revoke rotate search send set show "
    "simulate snooze start stop submit subscribe suspend sync terminate toggle trigger unarchive unassign unban "
    "unblock unfollow uninstall unlink unlock unmute unpin unpublish unregister unset unshare unsnooze unstar "
    "unsubscribe update upgrade upsert validate verify view wait watch withdraw"
)
"""Words that are hardly ever nouns at the beginning of an identifier."""
LAST: Final = CLEAR - word_set("import mark process refresh upgrade view wait watch")
"""Those that are hardly ever nouns at its end."""
ALL: Final = CLEAR | word_set(
    "block capture check clone close commit copy drop end export force fork grant invite join kill launch leave "
    "lock log lookup move notify open pause pay pin ping preview query refund register release request reset "
    "return rollback run save schedule share sign split star swap switch test transfer transition upload void"
)


def agrees(verb: str, method: str) -> bool:
    """Whether a verb can be what an operation of the method does: a GET creates nothing.

    >>> agrees("create", "GET"), agrees("list", "GET"), agrees("search", "POST"), agrees("read", "PUT")
    (False, True, True, False)
    """
    reads = method.upper() in ("GET", "HEAD", "QUERY", "OPTIONS")
    return reads or method.upper() == "POST" if verb in _READING else not reads
