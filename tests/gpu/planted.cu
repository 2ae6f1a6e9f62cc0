// What a checker must notice, so that its silence about the monokernel means something.

extern "C" __global__ void race(int* out) {
    __shared__ volatile int words[64];
    words[threadIdx.x] = int(threadIdx.x);
    out[threadIdx.x] = words[63 - threadIdx.x];
}

extern "C" __global__ void divergent_barrier(int* out) {
    if (threadIdx.x % 2) __syncthreads();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void bad_write(int* out) { out[threadIdx.x + (1ll << 40)] = 1; }
