"""The device service: one process owns a device, and models in other processes execute on it.

The first client starts it, it ends some seconds after the last one has left, and tensors lie in
memory that both sides see.

    client   backend, engine, reconnecting_client, connection, launcher
    service  server, session, execution_loop, state, model_cache, fair_scheduler, fair_queue
    both     channel, protocol, shared_memory, identity, runtime_folder
"""
