#!/bin/sh
# Starts JupyterLab in the background of the sandbox.
mkdir -p ~/work
cd ~/work
PYTHONPATH=$HOME/site setsid nohup python3 -m jupyterlab --no-browser --ip=127.0.0.1 --port=8899 --IdentityProvider.token=secret \
  --ServerApp.root_dir="$HOME/work" >~/jupyter.log 2>&1 </dev/null &
