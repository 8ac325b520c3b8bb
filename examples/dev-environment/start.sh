#!/bin/sh
# An ssh server for one user, without root: own host key, own port, keys only.
set -eu
mkdir -p ~/.ssh
[ -e ~/.ssh/host_key ] || ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/host_key
install -m 0600 /keys/authorized_keys ~/.ssh/authorized_keys
exec /usr/sbin/sshd -D -e -f /dev/null -p 2222 -h ~/.ssh/host_key -o PidFile=none -o UsePAM=no \
  -o PasswordAuthentication=no -o StrictModes=no -o AuthorizedKeysFile="$HOME/.ssh/authorized_keys" -o Subsystem='sftp internal-sftp'
