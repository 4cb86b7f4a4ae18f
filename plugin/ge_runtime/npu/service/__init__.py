"""The device service: one process owns a device, and executes models for other processes.

The first client starts the service, which ends some seconds after the last client has disconnected.
Tensors are in memory that client and service share.

    client   backend, engine, reconnecting_client, connection, launcher
    service  server, session, execution_loop, state, model_cache, fair_scheduler,
             resident, row_registry
    both     channel, protocol, messages, shared_memory, launcher (the runtime folder)
"""
