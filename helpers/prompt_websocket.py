"""Send kernel messages to the browser without delay.

Jupyter's server leaves Nagle's algorithm on for its websockets: a small message waits until the browser has
acknowledged the previous one, which it may delay by 40 ms. A widget's answer always follows a small "busy" message, so
a slider's move may show up 40 ms late. Set this class as `ServerApp.kernel_websocket_connection_class`.
"""

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Jupyter's own connection, with TCP_NODELAY on its socket."""

    def connect(self):
        self.websocket_handler.set_nodelay(True)
        return super().connect()
