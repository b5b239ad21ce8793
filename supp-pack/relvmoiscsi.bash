# Completion of the words of relvmoiscsi(8) in bash. Made from the command's parser: --completion

# what may follow the command $1: its commands and options
_relvmoiscsi_words() {
    case $1 in
        '') echo '-h --help --version --completion show check resignature recover undo map doctor settings direct pool' ;;
        'show') echo '-h --help --json -q --quiet -v --verbose FILE --initiator-name --chap-file --block-device' ;;
        'check') echo '-h --help --json -q --quiet -v --verbose FILE --initiator-name --chap-file --block-device --original --identities-only' ;;
        'resignature') echo '-h --help --json -q --quiet -v --verbose -y --yes --not-in-use --scsi-id --map-out FILE --initiator-name --chap-file --block-device -n --dry-run --sr-uuid --map --vdis --vdi --without --clear-metadata-vdi --again --later-copy' ;;
        'recover') echo '-h --help --json -q --quiet -v --verbose -y --yes --not-in-use --scsi-id --map-out FILE --initiator-name --chap-file --block-device' ;;
        'undo') echo '-h --help --json -q --quiet -v --verbose -y --yes --not-in-use --scsi-id --map-out FILE --initiator-name --chap-file --block-device' ;;
        'map') echo '-h --help --json -q --quiet -v --verbose --device --initiator-name --chap-file --block-device --sr' ;;
        'doctor') echo '-h --help --json -q --quiet -v --verbose' ;;
        'settings') echo '-h --help --json -q --quiet -v --verbose --vdis' ;;
        'direct') echo '-h --help --json -q --quiet -v --verbose add remove list' ;;
        'direct add') echo '-h --help --json -q --quiet -v --verbose --iscsi' ;;
        'direct remove') echo '-h --help --json -q --quiet -v --verbose' ;;
        'direct list') echo '-h --help --json -q --quiet -v --verbose' ;;
        'pool') echo '-h --help --json -q --quiet -v --verbose luns attach map discard unlock clone restore rescue save-vms secrets' ;;
        'pool luns') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --hba --target --iqn --port --chap-user --chap-password-file --clean-secrets --jobs' ;;
        'pool attach') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --clones-of --all --foreign --unplugged --leave-others --name --map-out --hba --target --iqn --port --chap-user --chap-password-file --clean-secrets --jobs -n --dry-run -y --yes' ;;
        'pool map') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure' ;;
        'pool discard') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --clones-of --all --with-vms --leave-vms -n --dry-run -y --yes' ;;
        'pool unlock') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure -n --dry-run -y --yes' ;;
        'pool clone') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --all --name --isolated --network --same-networks --omit-disks --keep-mac --snapshots --from-snapshot --trust-records --no-vtpm --no-vgpu --jobs -n --dry-run -y --yes' ;;
        'pool restore') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --disk --shutdown --undo --home --keep -n --dry-run -y --yes' ;;
        'pool rescue') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --vm --rw --done -n --dry-run -y --yes' ;;
        'pool save-vms') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure -n --dry-run -y --yes' ;;
        'pool secrets') echo '-h --help --json -q --quiet -v --verbose --log --pool --user --password-file --ca --insecure --remove -y --yes --chap-password-file' ;;
    esac
}

# what may follow the option $2 of the command $1: words, or FILE for the name of one; fails if no value follows
_relvmoiscsi_value() {
    case "$1 $2" in
        ' --completion') echo 'bash zsh' ;;
        'show --initiator-name') echo '' ;;
        'show --chap-file') echo 'FILE' ;;
        'check --initiator-name') echo '' ;;
        'check --chap-file') echo 'FILE' ;;
        'check --original') echo 'FILE' ;;
        'resignature --scsi-id') echo '' ;;
        'resignature --map-out') echo 'FILE' ;;
        'resignature --initiator-name') echo '' ;;
        'resignature --chap-file') echo 'FILE' ;;
        'resignature --sr-uuid') echo '' ;;
        'resignature --map') echo 'FILE' ;;
        'resignature --vdis') echo 'one all' ;;
        'resignature --vdi') echo '' ;;
        'resignature --without') echo '' ;;
        'recover --scsi-id') echo '' ;;
        'recover --map-out') echo 'FILE' ;;
        'recover --initiator-name') echo '' ;;
        'recover --chap-file') echo 'FILE' ;;
        'undo --scsi-id') echo '' ;;
        'undo --map-out') echo 'FILE' ;;
        'undo --initiator-name') echo '' ;;
        'undo --chap-file') echo 'FILE' ;;
        'map --device') echo 'FILE' ;;
        'map --initiator-name') echo '' ;;
        'map --chap-file') echo 'FILE' ;;
        'map --sr') echo '' ;;
        'settings --vdis') echo 'one all' ;;
        'pool luns --log') echo 'FILE' ;;
        'pool luns --pool') echo '' ;;
        'pool luns --user') echo '' ;;
        'pool luns --password-file') echo 'FILE' ;;
        'pool luns --ca') echo 'FILE' ;;
        'pool luns --target') echo '' ;;
        'pool luns --iqn') echo '' ;;
        'pool luns --port') echo '' ;;
        'pool luns --chap-user') echo '' ;;
        'pool luns --chap-password-file') echo 'FILE' ;;
        'pool luns --jobs') echo '' ;;
        'pool attach --log') echo 'FILE' ;;
        'pool attach --pool') echo '' ;;
        'pool attach --user') echo '' ;;
        'pool attach --password-file') echo 'FILE' ;;
        'pool attach --ca') echo 'FILE' ;;
        'pool attach --clones-of') echo '' ;;
        'pool attach --name') echo '' ;;
        'pool attach --map-out') echo 'FILE' ;;
        'pool attach --target') echo '' ;;
        'pool attach --iqn') echo '' ;;
        'pool attach --port') echo '' ;;
        'pool attach --chap-user') echo '' ;;
        'pool attach --chap-password-file') echo 'FILE' ;;
        'pool attach --jobs') echo '' ;;
        'pool map --log') echo 'FILE' ;;
        'pool map --pool') echo '' ;;
        'pool map --user') echo '' ;;
        'pool map --password-file') echo 'FILE' ;;
        'pool map --ca') echo 'FILE' ;;
        'pool discard --log') echo 'FILE' ;;
        'pool discard --pool') echo '' ;;
        'pool discard --user') echo '' ;;
        'pool discard --password-file') echo 'FILE' ;;
        'pool discard --ca') echo 'FILE' ;;
        'pool discard --clones-of') echo '' ;;
        'pool unlock --log') echo 'FILE' ;;
        'pool unlock --pool') echo '' ;;
        'pool unlock --user') echo '' ;;
        'pool unlock --password-file') echo 'FILE' ;;
        'pool unlock --ca') echo 'FILE' ;;
        'pool clone --log') echo 'FILE' ;;
        'pool clone --pool') echo '' ;;
        'pool clone --user') echo '' ;;
        'pool clone --password-file') echo 'FILE' ;;
        'pool clone --ca') echo 'FILE' ;;
        'pool clone --name') echo '' ;;
        'pool clone --isolated') echo '' ;;
        'pool clone --network') echo '' ;;
        'pool clone --trust-records') echo '' ;;
        'pool clone --jobs') echo '' ;;
        'pool restore --log') echo 'FILE' ;;
        'pool restore --pool') echo '' ;;
        'pool restore --user') echo '' ;;
        'pool restore --password-file') echo 'FILE' ;;
        'pool restore --ca') echo 'FILE' ;;
        'pool restore --disk') echo '' ;;
        'pool restore --undo') echo '' ;;
        'pool restore --home') echo '' ;;
        'pool restore --keep') echo '' ;;
        'pool rescue --log') echo 'FILE' ;;
        'pool rescue --pool') echo '' ;;
        'pool rescue --user') echo '' ;;
        'pool rescue --password-file') echo 'FILE' ;;
        'pool rescue --ca') echo 'FILE' ;;
        'pool rescue --vm') echo '' ;;
        'pool save-vms --log') echo 'FILE' ;;
        'pool save-vms --pool') echo '' ;;
        'pool save-vms --user') echo '' ;;
        'pool save-vms --password-file') echo 'FILE' ;;
        'pool save-vms --ca') echo 'FILE' ;;
        'pool secrets --log') echo 'FILE' ;;
        'pool secrets --pool') echo '' ;;
        'pool secrets --user') echo '' ;;
        'pool secrets --password-file') echo 'FILE' ;;
        'pool secrets --ca') echo 'FILE' ;;
        'pool secrets --chap-password-file') echo 'FILE' ;;
        *) return 1 ;;
    esac
}

_relvmoiscsi() {
    local current=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]} command='' known n
    if [[ $current == = ]]; then current=''; fi # --option=value is three words
    if [[ $last == = ]]; then last=${COMP_WORDS[COMP_CWORD - 2]}; fi
    for ((n = 1; n < COMP_CWORD; n++)); do
        known=" $(_relvmoiscsi_words "$command") "
        if [[ ${COMP_WORDS[n]} != -* && $known == *" ${COMP_WORDS[n]} "* ]]; then
            command="${command:+$command }${COMP_WORDS[n]}"
        fi
    done
    known=$(_relvmoiscsi_value "$command" "$last") || known=$(_relvmoiscsi_words "$command")
    COMPREPLY=()
    if [[ " $known " != *" FILE "* || $current == -* ]]; then
        compopt +o default 2>/dev/null
        COMPREPLY=($(compgen -W "${known//FILE/}" -- "$current"))
    fi
}

complete -o default -F _relvmoiscsi relvmoiscsi
