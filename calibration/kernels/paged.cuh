// The paged KV cache that both attention kernels read, and a slow float64 reference for them.
//
// Layout of K and of V: [block][token in block][KV head][head size]; a block table lists, per sequence, the
// blocks in order. Slots no sequence uses are poisoned with NaN before a correctness check.
#pragma once
#include "common.cuh"

template <typename KV>
struct PagedCache {
  KV *k, *v;
  int blocks, block_size, kv_heads, head_size;
  __host__ __device__ size_t row() const { return static_cast<size_t>(kv_heads) * head_size; }
  size_t elements() const { return static_cast<size_t>(blocks) * block_size * row(); }
};

template <typename KV>
PagedCache<KV> make_cache(int blocks, int block_size, int kv_heads, int head_size, uint64_t seed) {
  PagedCache<KV> c{nullptr, nullptr, blocks, block_size, kv_heads, head_size};
  c.k = device_alloc<KV>(c.elements());
  c.v = device_alloc<KV>(c.elements());
  fill_random(c.k, c.elements(), seed, 2.0f);
  fill_random(c.v, c.elements(), seed + 1, 2.0f);
  return c;
}

template <typename KV>
void free_cache(PagedCache<KV>& c) {
  CHECK(cudaFree(c.k));
  CHECK(cudaFree(c.v));
}

// A random permutation of all blocks: callers cut slices off it as block tables.
inline std::vector<int> shuffled_blocks(int blocks, uint64_t seed) {
  std::vector<int> order(blocks);
  for (int i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  return order;
}

// Poison (all bits set: NaN in bf16 and e4m3) every cache slot at or past each sequence's length.
template <typename KV>
__global__ void poison_kernel(PagedCache<KV> c, const int* table, int max_blocks, const int* lengths) {
  int seq = blockIdx.y, row_bytes = static_cast<int>(c.row() * sizeof(KV));
  int slots = max_blocks * c.block_size;
  for (int t = lengths[seq] + blockIdx.x; t < slots; t += gridDim.x) {
    int block = table[seq * max_blocks + t / c.block_size];
    if (block < 0) continue;
    size_t at = (static_cast<size_t>(block) * c.block_size + t % c.block_size) * c.row();
    for (int i = threadIdx.x; i < row_bytes; i += blockDim.x) {
      reinterpret_cast<unsigned char*>(c.k + at)[i] = 0xff;
      reinterpret_cast<unsigned char*>(c.v + at)[i] = 0xff;
    }
  }
}

// Softmax attention in float64, one warp per (query, head). `kv_len` of query i of a sequence with `past`
// earlier tokens is past + i + 1 (causal); a decode query is the case of one query with past = length - 1.
template <typename KV>
__global__ void reference_kernel(PagedCache<KV> c, const bf16* q, const int* table, int max_blocks,
                                 const int* query_seq, const int* query_kv_len, const int* query_row, int heads,
                                 double scale, double v_scale, double* out) {
  int item = blockIdx.x, head = blockIdx.y, lane = threadIdx.x, kv_head = head / (heads / c.kv_heads);
  int seq = query_seq[item], len = query_kv_len[item], d = c.head_size, per = d / 32;
  double qv[4], acc[4] = {0, 0, 0, 0}, peak = -1e300, sum = 0;
  for (int i = 0; i < per; ++i)
    qv[i] = static_cast<float>(q[(static_cast<size_t>(query_row[item]) * heads + head) * d + lane * per + i]);
  for (int t = 0; t < len; ++t) {
    int block = table[seq * max_blocks + t / c.block_size];
    size_t at = (static_cast<size_t>(block) * c.block_size + t % c.block_size) * c.row() +
                static_cast<size_t>(kv_head) * d + lane * per;
    double s = 0;
    for (int i = 0; i < per; ++i) s += qv[i] * static_cast<double>(static_cast<float>(c.k[at + i]));
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    s *= scale;
    double top = fmax(peak, s), keep = exp(peak - top), p = exp(s - top);
    sum = sum * keep + p;
    for (int i = 0; i < per; ++i)
      acc[i] = acc[i] * keep + p * static_cast<double>(static_cast<float>(c.v[at + i]));
    peak = top;
  }
  for (int i = 0; i < per; ++i)
    out[(static_cast<size_t>(item) * heads + head) * d + lane * per + i] = acc[i] / sum * v_scale;
}

// Run the reference for the queries listed and return [query][head][head size].
template <typename KV>
std::vector<double> reference(const PagedCache<KV>& c, const bf16* q, const int* table, int max_blocks,
                              const std::vector<int>& seq, const std::vector<int>& kv_len,
                              const std::vector<int>& row, int heads, double scale, double v_scale = 1.0) {
  size_t n = seq.size() * static_cast<size_t>(heads) * c.head_size;
  int *ds = to_device(seq), *dl = to_device(kv_len), *dr = to_device(row);
  double* out = device_alloc<double>(n);
  reference_kernel<KV><<<dim3(seq.size(), heads), 32>>>(c, q, table, max_blocks, ds, dl, dr, heads, scale, v_scale, out);
  CHECK_LAUNCH();
  CHECK(cudaDeviceSynchronize());
  std::vector<double> host = to_host(out, n);
  for (void* p : {static_cast<void*>(ds), static_cast<void*>(dl), static_cast<void*>(dr), static_cast<void*>(out)})
    CHECK(cudaFree(p));
  return host;
}
