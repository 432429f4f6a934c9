"""The text of a refusal: the right that is lacking, and the command that helps.

Pure.
"""

from __future__ import annotations

import shlex

from minimq_common.names import ONE_TIME_TRANSACTIONS
from minimq_common.security.access_policy import AccessDecision, of_group
from minimq_common.security.access_rule import Need, Resource, Rule, Verb

#: Options of `minimq user allow` and `minimq user deny`, by what they are about.
_OPTIONS = {
    (Verb.WRITE, Resource.TOPIC): "--write",
    (Verb.READ, Resource.TOPIC): "--read",
    (Verb.MANAGE, Resource.TOPIC): "--manage",
    (Verb.READ, Resource.GROUP): "--group",
    (Verb.WRITE, Resource.TRANSACTION): "--transaction",
}

#: Begin of the source of a rule that stands in a role.
_ROLE = "role "


def refused(user: str, decision: AccessDecision) -> str:
    """Return the text for a caller that a decision refuses.

    A rule that denies is named: its pattern is a name that the caller has asked for, or the begin of it.
    """
    need = of_group(decision.need)
    name = shlex.quote(user)  # that of a user of an issuer may have a letter of the shell
    what = "may not see or change users and rules" if need.verb is Verb.ACCESS else f"may not {need}"
    if not user:
        return f"a caller without a key {what}: give the credentials of an administrator"
    if user.startswith("%"):
        return f"a server {what}"
    if decision.rule is not None:
        return f"user {user} {what}, whatever else is allowed: {denied_by(user, decision.rule, decision.source)}"
    if need.verb is Verb.ACCESS:  # whoever has this right can have all others
        return f"user {user} {what}: only administrators may, and `minimq user allow {name} {_rights(need)}` makes one"
    grant = f"an administrator can grant it with `minimq user allow {name} "
    if (need.verb, need.resource) == (Verb.DESCRIBE, Resource.TOPIC):  # the first step of every use of a topic
        write, read = (_right(verb, need.resource, need.name) for verb in (Verb.WRITE, Verb.READ))
        return f"user {user} has no right to topic {need.name}: {grant}{write}`, for sending, or `{read}`, for reading"
    return f"user {user} {what}: {grant}{_rights(need)}`"


def denied_by(user: str, rule: Rule, source: str) -> str:
    """Return which rule denies something, and how it is removed."""
    name = shlex.quote(user)
    if source.startswith(_ROLE):
        role = source.removeprefix(_ROLE)
        remedy = (
            f"an administrator can take that role away with `minimq user allow {name} --role {role} --remove`, or "
            "change it with `minimq access apply`"
        )
    else:
        right = _right(rule.verb, rule.resource, rule.pattern)
        remedy = f"an administrator can remove that rule with `minimq user deny {name} {right} --remove`"
    return f"the rule '{rule}' of {source} denies it; {remedy}"


def _rights(need: Need) -> str:
    if need.resource is Resource.TRANSACTION and need.name.startswith(ONE_TIME_TRANSACTIONS):
        return _right(need.verb, need.resource, f"{ONE_TIME_TRANSACTIONS}*")  # this very name comes never again
    return _right(need.verb, need.resource, need.name)


def _right(verb: Verb, resource: Resource, pattern: str) -> str:
    option = _OPTIONS.get((verb, resource))
    if option is not None:
        return f"{option} {shlex.quote(pattern)}"
    return f"--right '{verb.value} {resource.value} {pattern}".rstrip() + "'"
