"""Names of operations as a person would give them."""

import re
from random import Random

from app.apis.naming import path_name, readable_name
from tests.support.every_row import every_row
from tests.support.processor_time import within
from trainer.worlds.generated.apis import GYM, draw_gym_api
from trainer.worlds.generated.words import draw_domain

REPO = "/repos/{owner}/{repo}"


NAMES: list[tuple[str, str, str]] = [
    ("listMails", "GET /mails", "list_mails"),
    ("sendMail", "POST /mails/{id}/send", "send_mail"),
    # a list that is no verb
    ("new_price_list", "POST /price-lists", "new_price_list"),
    ("price_list_list", "GET /price-lists", "list_price_lists"),
    ("getURLsOfVPCs", "GET /vpcs/urls", "get_urls_of_vpcs"),
    # FastAPI appends the path and the method
    ("read_flows_flows_filter_post", "POST /flows/filter", "read_flows"),
    ("read_flow_flows__id__get", "GET /flows/{id}", "read_flow"),
    ("read_flow_flows__id__get", "GET /api/flows/{id}", "read_flow"),
    ("health_check_health_get", "GET /health", "health_check"),
    ("flows_flows_get", "GET /flows", "list_flows"),
    ("a_post", "POST /b", "post_a"),
    # so do springfox and NestJS
    ("createUserUsingPOST_1", "POST /users", "create_user"),
    ("UsersController_findAll", "GET /users", "find_all_users"),
    ("UsersController_findOne", "GET /users/{id}", "find_one_user"),
    ("UsersController_remove", "DELETE /users/{id}", "remove_user"),
    ("UsersControllerV1_create", "POST /v1/users", "create_user"),
    ("UsersController_findAll[0]", "GET /users", "find_all_users"),
    ("usersControllerFindAll", "GET /users", "find_all_users"),
    ("UserController.list", "GET /users", "list_users"),
    # Django and Flask have a verb for the method behind all else
    ("users_list", "GET /users/", "list_users"),
    ("api_v1_users_retrieve", "GET /api/v1/users/{id}/", "retrieve_user"),
    ("users_block_create", "POST /users/{id}/block/", "block_user"),
    ("get_user_list", "GET /users/", "list_users"),
    ("post_user_list", "POST /users/", "create_user"),
    ("get_price_list", "GET /price-list", "get_price_list"),
    # Laravel and Rails have actions of their own
    ("users.index", "GET /users", "list_users"),
    ("users.store", "POST /users", "create_user"),
    ("users.show", "GET /users/{user}", "show_user"),
    ("users#destroy", "DELETE /users/{user}", "delete_user"),
    # a verb alone, and one of several that have the same name
    ("list", "GET /users", "list_users"),
    ("create_1", "POST /users", "create_user"),
    ("getUsers_2", "GET /users", "list_users"),
    ("list_7", "GET /list_7", "list_7"),
    ("ping", "GET /ping", "ping"),
    ("drop", "DELETE /users/{id}", "drop"),
    ("get", "GET /users/{id}", "get_user"),
    # the resource first
    ("issues/create", f"POST {REPO}/issues", "create_issue"),
    ("issues/get", f"GET {REPO}/issues/{{issue_number}}", "get_issue"),
    ("issues/list-for-repo", f"GET {REPO}/issues", "list_issues_for_repo"),
    ("issues/create-comment", f"POST {REPO}/issues/{{issue_number}}/comments", "create_issue_comment"),
    ("issues/list-labels-on-issue", f"GET {REPO}/issues/{{issue_number}}/labels", "list_labels_on_issue"),
    ("activity/star-repo", "PUT /user/starred/{owner}/{repo}", "star_repo"),
    ("repos/create-in-org", "POST /orgs/{org}/repos", "create_repo_in_org"),
    ("search/code", "GET /search/code", "search_code"),
    ("storage.buckets.insert", "POST /b", "insert_storage_bucket"),
    ("droplets_list", "GET /droplets", "list_droplets"),
    ("droplets_destroy_byTag", "DELETE /droplets", "destroy_droplets_by_tag"),
    ("firewalls_delete_droplets", "DELETE /firewalls/{id}/droplets", "delete_firewall_droplets"),
    ("uptime_check_state_get", "GET /uptime/checks/{id}/state", "get_uptime_check_state"),
    ("VirtualMachines_CreateOrUpdate", "PUT /virtualMachines/{name}", "create_or_update_virtual_machine"),
    ("groupCreate", "POST /groups", "create_group"),
    ("dcim_sites_read", "GET /dcim/sites/{id}/", "read_dcim_site"),
    ("dcim_sites_bulk_partial_update", "PATCH /dcim/sites/", "bulk_partial_update_dcim_sites"),
    ("circuits_circuits_delete", "DELETE /circuits/circuits/{id}/", "delete_circuit"),
    # a noun that is a verb elsewhere
    ("notifications_mark_as_read", "PUT /notifications", "mark_notifications_as_read"),
    ("latest_update", "GET /updates/latest", "latest_update"),
    # no more than method and path, or less
    ("GetCustomersCustomerCards", "GET /v1/customers/{customer}/cards", "list_customer_cards"),
    ("getV3ProjectsIdBoards", "GET /v3/projects/{id}/boards", "list_project_boards"),
    ("put_users_id", "PUT /users/{user_id}", "replace_user"),
    ("accounts", "GET /accounts", "list_accounts"),
    ("account", "GET /accounts/{id}", "get_account"),
    ("whoami", "GET /whoami", "whoami"),
    ("", "GET /", "get_root"),
    ("邮件", "GET /mails", "list_mails"),
]


def test_a_name_is_what_the_operation_does() -> None:
    with every_row() as row:
        for operation_id, place, name in NAMES:
            with row(operation_id, place, name):
                assert readable_name(operation_id, *place.split(" ")) == name


PATH_NAMES: list[tuple[str, str]] = [
    ("GET /customers", "list_customers"),
    ("GET /customers/{id}", "get_customer"),
    ("GET /balance", "get_balance"),
    ("GET /charges/search", "search_charges"),
    ("POST /customers", "create_customer"),
    ("POST /customers/{id}", "update_customer"),
    ("POST /invoices/{id}/mark_uncollectible", "mark_uncollectible_invoice"),
    ("POST /charges/{id}/dispute", "post_charge_dispute"),
    ("PUT /customers/{id}", "replace_customer"),
    ("PATCH /customers/{id}", "update_customer"),
    ("DELETE /customers/{id}/cards/{card}", "delete_customer_card"),
    ("HEAD /customers", "head_customers"),
    ("GET /api/v2/tax/calculations/{id}/line_items", "list_tax_calculation_line_items"),
    ("GET /project/{user}/{project}", "get_project"),
    ("GET /project/{user}/{project}/{build_num}", "get_project_by_build_num"),
    ("GET /{id}", "get_id"),
]


def test_without_an_operation_id_method_and_path_make_the_name() -> None:
    with every_row() as row:
        for place, name in PATH_NAMES:
            with row(place, name):
                assert path_name(*place.split(" ")) == name


def test_names_that_begin_with_their_verb_stay_as_models_were_trained_on_them() -> None:
    rng = Random(7)
    for _ in range(300):
        drawn = draw_gym_api("app", draw_domain("train", rng), GYM.draw("train", rng), rng, "test")
        for route in drawn.routes:
            assert readable_name(route.id, route.method, route.path) == route.python


def test_hostile_identifiers_take_linear_time() -> None:
    path = "/" + "/".join("a" * 500) + "/{b}" * 300
    with within():
        for written in ("A" * 100_000, "_" * 100_000, "aB" * 50_000, re.sub(r"\W", "_", path) + "_post"):
            for _ in range(20):
                readable_name(written, "POST", path)
                path_name("POST", path)
