// Calls kernels for tests/methods/emulated.py, one for each byte that is read, with the memory that
// the file named first holds: the kernel's name, its arguments, and the memory to which they point.
// Writes that back, and a byte when it is done.

#include <cstdio>
#include <fstream>
#include <vector>

#include "attention.cpp"

struct Region {
  int64_t start, size;  // where it was
  std::vector<char> data;
};

static void call(const char* path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  auto number = [&] {
    int64_t x;
    file.read((char*)&x, 8);
    return x;
  };
  char name[16];
  file.read(name, 16);
  std::vector<int64_t> arguments(number() / 8);
  file.read((char*)arguments.data(), arguments.size() * 8);
  std::vector<Region> regions(number());
  for (Region& region : regions) {
    region.start = number(), region.size = number();
    region.data.resize(region.size);
    file.read(region.data.data(), region.size);
  }
  for (int64_t& word : arguments)
    for (Region& region : regions)
      if (word >= region.start && word < region.start + region.size) {
        word += (int64_t)region.data.data() - region.start;
        break;
      }
  if (!strcmp(name, "topk")) topk((const TopK*)arguments.data());
  else if (!strcmp(name, "topk_blocks")) topk_blocks((const TopK*)arguments.data());
  else if (!strcmp(name, "lookups")) lookups((const Lookups*)arguments.data());
  else if (!strcmp(name, "code_scores")) code_scores((const Codes*)arguments.data());
  else if (!strcmp(name, "code_sums")) code_sums((const Codes*)arguments.data());
  else if (!strcmp(name, "row_scores")) row_scores((const Rows*)arguments.data());
  else if (!strcmp(name, "row_sums")) row_sums((const Rows*)arguments.data());
  else if (!strcmp(name, "encode")) encode((const Lookups*)arguments.data());
  else if (!strcmp(name, "dci")) dci((const TopK*)arguments.data());
  else if (!strcmp(name, "dense_float32")) dense_float32((const Dense*)arguments.data());
  else dense_bfloat16((const Dense*)arguments.data());
  file.seekp(0);
  for (Region& region : regions) file.write(region.data.data(), region.size);
}

int main(int, char** names) {
  for (; getchar() != EOF; putchar('.'), fflush(stdout)) call(names[1]);
}
