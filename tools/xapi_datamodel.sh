#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-only
#
#   tools/xapi_datamodel.sh CHECKOUT > tests/data/xapi/datamodel.tsv
#
# The part of xapi's data model that the simulated pool consults, of a clone of xen-api (its HEAD): OCaml itself reads
# the model, a small program prints it. What the model uses of xapi's libraries is replaced by stubs here.
# It needs Debian's ocaml-nox and ocaml-findlib. What the columns are: tests/data/xapi/HOW.rst.

set -euo pipefail
checkout=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh
own_tmpdir
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

take() { git -C "$checkout" show "HEAD:$1" > "$(basename "$1")"; }
for path in $(git -C "$checkout" ls-tree --name-only HEAD ocaml/idl/); do
    case $path in
        *_main.ml | *_schema.ml | *_values.ml) ;;
        */datamodel*.ml | */dm_api.ml | */escaping.ml | */api_version.ml) take "$path" ;;
    esac
done
for name in constants api_errors api_messages; do take "ocaml/xapi-consts/$name.ml"; done
sed -i 's/\[@@deriving rpc\]//; s/(rpc_of_[a-z]* [sc])/(Rpc.String "")/' datamodel_types.ml
sed -i 's/^  let to_string ty = .*Rpc.to_string/  let to_string (_ : ty) = ""/' datamodel_utils.ml

cat > rpc.ml <<'ML'
type t = String of string | Other
let string_of_rpc = function String s -> s | Other -> ""
let rpc_of_string s = String s
ML
cat > clock.ml <<'ML'
module Date = struct
  type t = string
  let epoch = "19700101T00:00:00Z"
  let of_iso8601 s : t = s
  let to_rfc3339 (s : t) = s
end
ML
cat > sexplib0.ml <<'ML'
module Sexp = struct let to_string s = s end
ML
cat > backtrace.ml <<'ML'
let empty = "()"
let sexp_of_t x = x
ML
cat > sizes.ml <<'ML'
let ( ** ) = Int64.mul
let gib = 1073741824L
ML
cat > xapi_stdext_std.ml <<'ML'
module Listext = struct module List = struct
  include Stdlib.List
  let rec last = function [] -> None | [x] -> Some x | _ :: rest -> last rest
  let setify l = List.rev (List.fold_left (fun found x -> if List.mem x found then found else x :: found) [] l)
end end
ML
cat > zz_print.ml <<'ML'
open Datamodel_types

let classes = ["session"; "task"; "event"; "pool"; "host"; "host_metrics"; "VM"; "VM_metrics"; "VM_guest_metrics"; "VBD";
  "VDI"; "VIF"; "PIF"; "network"; "SR"; "PBD"; "SM"; "secret"; "message"; "VTPM"; "VGPU"; "VGPU_type"; "GPU_group"]

let rec ty = function
  | SecretString | String -> "string" | Int -> "int" | Float -> "float" | Bool -> "bool" | DateTime -> "time"
  | Enum (name, _) -> "enum " ^ name | Ref name -> "ref " ^ name | Record name -> "record " ^ name
  | Set t -> "set(" ^ ty t ^ ")" | Option t -> ty t | Map (a, b) -> "map(" ^ ty a ^ "," ^ ty b ^ ")"

let rec enums = function
  | Enum (name, values) -> [(name, List.map fst values)]
  | Set t | Option t -> enums t | Map (a, b) -> enums a @ enums b | _ -> []

let least = function
  | None -> "none" | Some [] -> "local-root"
  | Some roles -> List.hd (List.rev (List.filter (fun role -> role <> Datamodel_roles.role_client_cert) roles))

let keys found = String.concat "," (List.map (fun (key, roles) -> key ^ "=" ^ least roles) found)
let say words = print_endline (String.concat "\t" words)
let is_served m = Datamodel_utils.on_client_side m (* the server of xapi has the same messages *)
let is_custom m = match m.msg_tag with FromField _ -> false | _ -> true

(* When a field or message came and went; "-" for what has been there since before releases had numbers. *)
let releases (lifecycle : Lifecycle.t) =
  let came name = if String.contains name '.' then Some ("since " ^ name) else None in
  let step (state, found) (change, name, _) = match state, change with
    | `Away, Lifecycle.(Prototyped | Published) -> `There, came name :: found
    | `There, Lifecycle.Removed -> `Away, Some ("removed " ^ name) :: found
    | _ -> state, found in
  match List.filter_map Fun.id (List.rev (snd (List.fold_left step (`Away, []) lifecycle.transitions))) with
  | [] -> "-"
  | found -> String.concat ";" found

let rec fields = function Field f -> [f] | Namespace (_, inside) -> List.concat_map fields inside

let field o f =
  let role op = match List.find_opt (fun m -> match m.msg_tag with
    | FromField (o, f') -> o = op && f'.full_name = f.full_name && is_served m | _ -> false) o.messages with
    | Some m when not (List.exists (fun c -> is_custom c && c.msg_name = m.msg_name) o.messages) ->
        least m.msg_allowed_roles
    | _ -> "-" in
  let kind = match f.qualifier with RW -> "rw" | StaticRO -> "static" | DynamicRO -> "ro" in
  say ["field"; o.name; String.concat "_" f.full_name; String.concat "__" f.full_name; ty f.ty; kind; role Getter;
    role Setter; role Add; keys f.field_map_keys_roles; (if f.internal_only then "hidden" else releases f.lifecycle)]

let call o m =
  let param p = ty p.param_type ^ (if p.param_default = None then " " else "? ") ^ p.param_name in
  say ["call"; o.name; m.msg_name; least m.msg_allowed_roles; (if m.msg_async then "async" else "-");
    String.concat ";" (List.map param m.msg_params); String.concat "," (List.map (fun e -> e.err_name) m.msg_errors);
    keys m.msg_map_keys_roles; releases m.msg_lifecycle]

let () =
  let api = Datamodel_utils.add_implicit_messages ~document_order:false Datamodel.all_api in
  List.iter (fun o ->
      let calls = List.filter (fun m -> is_custom m && is_served m) o.messages in
      if List.mem o.name classes then begin
        List.iter (field o) (List.concat_map fields o.contents);
        List.iter (call o) calls
      end else List.iter (call o) (List.filter (fun m -> m.msg_name = "get_all_records") calls)
    ) (Dm_api.objects_of_api api);
  let mine = List.filter (fun o -> List.mem o.name classes) (Dm_api.objects_of_api api) in
  List.iter (fun o ->
      let is_given f = (f.qualifier = RW || f.qualifier = StaticRO) && f.default_value = None in
      let takes_record m = List.exists (fun p -> p.param_type = Record o.name) m.msg_params in
      if List.exists (fun m -> m.msg_name = "create" && is_served m && takes_record m) o.messages then
        say ["needs"; o.name; String.concat "," (List.map (fun f -> String.concat "_" f.full_name)
          (List.filter is_given (List.concat_map fields o.contents)))]) mine;
  let found = List.concat_map (fun o ->
      List.concat_map (fun f -> enums f.ty) (List.concat_map fields o.contents)
      @ List.concat_map (fun m -> List.concat_map (fun p -> enums p.param_type) m.msg_params) o.messages) mine in
  List.iter (fun (name, values) -> say ["enum"; name; String.concat "," values]) (List.sort_uniq compare found);
  List.iter (fun (name, (_, uri, _, _, roles, _)) -> say ["http"; name; uri; least roles]) Datamodel.http_actions;
  List.iter (fun name -> say ["error"; name]) (List.sort_uniq compare !Api_errors.errors)
ML

files=$(ocamlfind ocamldep -sort ./*.ml)
# shellcheck disable=SC2086  # a list of names
ocamlfind ocamlc -w -a -package astring,unix -linkpkg -o print $files >&2
echo "# xen-api $(git -C "$checkout" rev-parse HEAD)"
./print
