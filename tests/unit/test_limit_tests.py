"""Each row of docs/limits.md is reached by a test, or is listed here as one without."""

from __future__ import annotations

from pathlib import Path

from support.limit_rows import limit_rows

TESTS = Path(__file__).parents[1]

#: Bounds of fields that the `.proto` files declare: one test sends a request that breaks each of them.
FIELDS = "integration/test_request_bounds.py::test_what_breaks_a_bound_is_rejected"
REQUESTS = "integration/test_request_bounds.py::test_a_request_that_is_too_large_is_not_even_opened"
HOSTILE = "unit/common/test_hostile_batches.py::test_a_header_that_promises_too_much_is_rejected_unopened"
MESSAGE = "unit/common/test_batch.py::test_a_message_that_breaks_a_rule_is_rejected_whole"
CALLS = "integration/test_connection_bounds.py::test_calls_that_come_faster_than_they_are_taken_up_are_all_answered"
METADATA = "integration/test_connection_bounds.py::test_large_metadata_is_rejected"
STREAMS = "integration/test_connection_bounds.py::test_a_connection_has_so_many_streams_and_further_ones_are_reset"
HANDSHAKE = (
    "security/test_strangers.py::test_a_crowd_of_strangers_takes_little_memory_and_those_without_a_handshake_are_closed"
)
IDLE = (
    "integration/nameserver/test_quiet_connections.py::test_an_idle_connection_is_closed_and_its_client_connects_again"
)
PINGS = "integration/nameserver/test_quiet_connections.py::test_a_connection_whose_other_end_answers_no_ping_is_closed"
FILES = "fault/test_full_disk.py::test_connections_leave_open_files_for_the_store"
POPPING = "features/work_queues/test_work_queue_bounds.py::"
WATCHERS = "unit/nameserver/test_watchers.py::"
NAMESERVER = "unit/nameserver/test_bounds.py::"
CONTROLLER = "unit/nameserver/test_controller_bounds.py::"
ROOM = "unit/broker/groups/test_group_room.py::"

#: Rows, by the beginning of their first cell, and the test that reaches each.
REACHED = {
    "Names and texts": {
        "topic |": "unit/common/test_names.py::test_the_length_is_limited",
        "consumer group |": "unit/common/test_names.py::test_the_length_is_limited",
        "broker, cluster": "unit/common/test_names.py::test_the_length_is_limited",
        "client id |": FIELDS,
        "address |": FIELDS,
        "filter of a topic": FIELDS,
        "`where` |": "features/sql_filters/test_filter_bounds.py::test_an_expression_has_a_largest_length",
        "different topics and filters": ROOM + "test_topics_and_filters_of_a_group_have_a_size",
        "error that a server sends": "unit/common/test_wire.py::test_a_long_error_text_is_cut",
    },
    "Messages": {
        "body |": "unit/broker/calls/test_limit_rejections.py::test_a_batch_and_a_body_over_a_limit_are_rejected",
        "tag |": "unit/common/test_message_check.py::test_a_tag_has_at_most_255_characters",
        "message group |": MESSAGE,
        "keys of a message |": MESSAGE,
        "properties of a message |": MESSAGE,
        "messages of a batch |": HOSTILE,
        "bodies of a batch |": (
            "unit/client/sending/test_pending_batch.py::test_all_leave_in_order_and_no_batch_is_too_large"
        ),
        "different tags of a batch |": "unit/common/test_batch.py::test_more_tags_than_a_dictionary_holds_are_rejected",
        "batch |": "unit/broker/calls/test_limit_rejections.py::test_a_batch_and_a_body_over_a_limit_are_rejected",
        "transaction of a producer |": "features/transactions/test_atomic_transactions.py::"
        "test_a_transaction_has_a_largest_size_and_number_of_batches",
        "content of a compressed batch |": "unit/common/test_compression.py::"
        "test_a_bomb_is_rejected_before_there_is_room_for_it",
        "`born_at` of a message |": HOSTILE,
    },
    "Lists in one request": {
        "queues that a member requests": FIELDS,
        "topics that a consumer": FIELDS,
        "tags in the filter": FIELDS,
        "queues of a topic": FIELDS,
        "brokers that take part": FIELDS,
        "parts of a transaction": FIELDS,
        "batches of one producer": FIELDS,
        "request that is not part": REQUESTS,
        "decision on a transaction": REQUESTS,
        "`access.toml`": "unit/common/test_server_secrets.py::test_an_access_toml_over_its_limit_is_rejected",
        "request of a stream": "unit/common/test_dispatcher.py::test_only_streams_of_batches_take_large_requests",
    },
    "Per broker": {
        "topics |": "integration/test_full_brokers.py::test_one_topic_too_many",
        "consumer groups |": "integration/test_full_brokers.py::test_one_group_too_many",
        "consumers with a session": "integration/test_full_brokers.py::test_one_session_too_many_until_another_ends",
        "subscriptions of all members": ROOM + "test_subscriptions_of_all_members_have_a_size",
        "members of a group": ROOM + "test_a_group_has_so_many_members",
        "queues that members of a group report": "unit/broker/groups/test_groups.py::"
        "test_what_members_hold_is_remembered_up_to_a_number",
        "streams of one kind": "unit/common/test_dispatcher.py::test_streams_of_one_kind_are_bounded",
        "searches under way": "features/search/test_finding_faults.py::"
        "test_more_searches_than_a_broker_takes_at_once_all_get_their_turn",
        "takes and settles": POPPING + "test_takes_of_one_stream_that_are_too_many_are_rejected_and_the_others_wait_on",
        "consumers of one such": POPPING + "test_a_stream_takes_for_a_thousand_consumers_from_five_thousand_topics",
        "ranges of messages": POPPING + "test_more_spans_than_may_be_on_their_way_to_the_disk_are_rejected_whole",
        "states of unsettled messages": "features/work_queues/test_pop_service.py::"
        "test_a_full_broker_delivers_no_new_messages_and_names_the_one_that_blocks",
        "messages of one work queue": POPPING
        + "test_as_many_messages_are_in_flight_as_may_be_and_no_more_until_some_are_settled",
        "queues that a member requests": "unit/broker/groups/test_lease_keeper.py::"
        "test_members_request_a_limited_number_of_queues",
        "time until the request of a call": "unit/common/test_dispatcher.py::"
        "test_a_call_whose_request_does_not_come_is_ended",
        "committed offsets": "unit/broker/groups/test_newcomers.py::"
        "test_offsets_that_are_there_may_change_when_no_more_may_come",
        "pulls of one stream": "unit/broker/calls/test_services.py::"
        "test_no_more_pulls_are_received_until_a_rejection_is_written",
        "time until the first request": "unit/common/test_dispatcher.py::"
        "test_a_stream_on_which_nothing_is_said_is_ended",
        "time for the handshake": HANDSHAKE,
        "idle time": IDLE,
        "time without any sign": PINGS,
        "connections |": FILES,
        "concurrent calls": STREAMS,
        "streams of one `Cluster`": "integration/test_streams.py::"
        "test_a_stream_beyond_the_limit_of_a_cluster_ends_with_an_error_that_names_it",
        "calls that have come": CALLS,
        "metadata": METADATA,
        "answers that clients": "integration/test_unread.py::test_who_reads_is_served_while_others_do_not",
        "bytes of requests that have": "unit/broker/calls/test_pieces.py::test_incomplete_requests_share_a_bound",
        "time until the next piece": (
            "unit/broker/calls/test_pieces.py::test_a_piece_that_does_not_arrive_ends_the_stream"
        ),
        "pieces of such a request": "unit/broker/calls/test_pieces.py::test_a_wrong_piece_ends_the_stream",
        "concurrent copies": "integration/test_unread.py::test_only_some_copies_are_taken_at_a_time",
        "jump of the clock": "unit/broker/log/test_deletion_clock.py::"
        "test_a_clock_that_jumps_ahead_deletes_nothing_until_it_returns",
    },
    "Per name server": {
        "topics of one broker": NAMESERVER + "test_a_broker_registers_no_more_topics_than_one_may_have",
        "topics with a route": NAMESERVER + "test_there_are_no_more_topics_than_there_is_room_for",
        "topics of all brokers": NAMESERVER + "test_all_brokers_together_carry_no_more_than_there_is_room_for",
        "registered brokers": NAMESERVER + "test_there_are_no_more_brokers_than_there_is_room_for",
        "topics of brokers that are offline": NAMESERVER
        + "test_brokers_that_went_are_forgotten_when_they_have_too_many_topics",
        "clients that watch": "integration/nameserver/test_hostile_requests.py::"
        "test_a_watcher_without_a_place_is_told_to_come_back",
        "topics that one client": WATCHERS + "test_one_client_watches_no_more_than_one_may",
        "topics that all clients": WATCHERS + "test_all_together_watch_no_more_than_all_may",
        "a call, other than": "integration/nameserver/test_hostile_requests.py::"
        "test_a_call_with_a_large_request_is_rejected",
        "the routes of all topics": "integration/nameserver/test_hostile_requests.py::"
        "test_the_routes_of_too_many_topics_are_not_sent_at_once",
        "large answers": "integration/nameserver/test_hostile_requests.py::"
        "test_large_lists_wait_until_those_before_them_are_taken",
        "connections, and": STREAMS,
        "calls that have come": CALLS,
        "metadata": METADATA,
        "time until the first request": "integration/nameserver/test_hostile_requests.py::"
        "test_streams_without_a_request_come_to_an_end",
        "time for the handshake": HANDSHAKE,
        "idle time": IDLE,
        "time without any sign": PINGS,
        "replica sets": CONTROLLER + "test_there_are_no_more_records_than_there_is_room_for",
        "replica reports held": CONTROLLER + "test_of_too_many_held_reports_the_oldest_is_answered",
    },
}

#: Rows without a test of their own so far. Only shorten this.
NOT_REACHED = {
    "Names and texts": ("user, role", "name in a rule"),
    "Messages": (),
    "Lists in one request": ("keys of a user",),
    "Per broker": (),
    "Per name server": (),
}


def test_each_row_is_listed_once_with_a_test_that_exists() -> None:
    for section, reached in REACHED.items():
        beginnings = [*reached, *NOT_REACHED[section]]
        cells = [row.removeprefix("| ") for row in limit_rows(section)][1:]  # without the head
        for cell in cells:
            found = [each for each in beginnings if cell.startswith(each)]
            assert len(found) == 1, f"{section}: {cell[:60]}: {found or 'name the test that reaches this limit'}"
        for each in beginnings:
            assert any(cell.startswith(each) for cell in cells), f"{section}: no row begins with {each!r}"
        for name in reached.values():
            file, _, function = name.partition("::")
            assert f"def {function}(" in (TESTS / file).read_text(), name
