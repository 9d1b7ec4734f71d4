"""Primitives of JAX programs that communicate: their arguments, communicators, and derivatives."""

from collops.jax.arguments import array as array
from collops.jax.communicators import native_comm as native_comm
from collops.jax.devices import has_devices as has_devices
from collops.jax.exchange import checked_status as checked_status
from collops.jax.exchange import exchange_p as exchange_p
from collops.jax.exchange import messages as messages
from collops.jax.exchange import with_derivative as with_derivative
from collops.jax.order import jit as jit
