/* Device.h - What device code in C needs; compiled by clang for nvptx64. */
#ifndef MGQ_TEST_DEVICE_KERNELS_DEVICE_H
#define MGQ_TEST_DEVICE_KERNELS_DEVICE_H

#define KERNEL __attribute__((device_kernel)) void
#define SHARED __attribute__((address_space(3)))
#define GLOBAL __attribute__((address_space(1)))

#define THREAD __nvvm_read_ptx_sreg_tid_x()
#define BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#define BLOCK_SIZE __nvvm_read_ptx_sreg_ntid_x()
#define SUM_LANES(value, by)                                                   \
  (value + __nvvm_shfl_sync_bfly_f32(-1, value, by, 31))

typedef float float4 __attribute__((ext_vector_type(4)));
typedef float float2 __attribute__((ext_vector_type(2)));

#endif
