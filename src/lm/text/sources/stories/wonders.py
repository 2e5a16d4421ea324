"""Plots 33 to 64: animals, machines and magic, in the notation of `stories.py`."""

PLOTS = """
# the stray
On the way home from school, {hero} saw {a critter} sitting alone near the {place}. It followed {him} all the
way home. "May I keep it?" asked {hero}. "First we must find out who lost it," said {elder} {kindly}. So {he}
drew {number} posters with {a color} pencil. {He} gave the little animal some {treats} and made it a bed out
of an old {wear}. The next day, a {boy friend} named {friend} came to the door. "That is my {pet}!" said
{friend}. {hero} felt {gloom}, but {he} gave {pet} back. "You can come and play with us any time," said the
{boy friend}. "{cheer}!" said {hero}. From then on, they played {game} together. {closing}

# the hurt wing
Under {a tree} tree, {hero} found {a bird} with a hurt wing. It felt {gloom} because it could not fly. "I will
take care of you," said {hero} {kindly}. {He} carried the bird home in {a color} {box} and named it {pet}.
{He} gave it some {fruits}, and {elder} put a bandage on the wing. After {number} days, the bird hopped onto
{a toy}. "Fly, {pet}, fly!" said {hero}. The bird flew over the {place} and was gone. But in the spring,
{hero} heard a song. "{cheer}! You are back!" The bird had brought {him} {a treasure}. They both felt
{feeling}. {closing}

# the animal that wanted to fly
{once}, there lived {a animal} named {pet} who wanted to fly. Every day, {he pet} watched {a bird} in the sky
and felt {gloom}. "I will try it," said {pet}. {He pet} made wings out of {color} paper and jumped off a wall
near the {place}. {crash}! {He pet} fell into some {flowers}. "You were not made to fly," said the bird
{kindly}. "But I can help you." The bird called {number} friends, and they brought a big basket. {pet} climbed
in, and the birds lifted the basket up into the sky. Far below, the world looked as small as {a toy}.
"{cheer}! I am flying!" shouted {pet}. Then they all ate some {treats} and felt {feeling}. {closing}

# winter food
{once}, there lived {a animal} named {pet} who loved {hobby} all summer long. "Winter is coming," said
{friend}, a wise old {bird}. "You should save some food." But {pet} only laughed. Then the snow came, and
there was nothing to eat. {pet} felt {gloom}. {He pet} went to a little house near the {place}. "Come in,"
said {friend} {kindly}. "I have {number} sacks of {treats}." To say thank you, {he pet} played the
{instrument} and sang about {topic}. "{cheer}!" said {friend}. "Next winter, I will feed you," said {pet}.
They both felt {feeling}. {closing}

# the narrow bridge
Two animals met on a narrow bridge near the {place}. One was {a animal} named {pet}, and the other was
{a critter} named {friend}. "Let me go first," said {pet}. "I want to buy {a color} {wear}." "No, let me go
first," said {friend}. "I have some {treats} for {elder}." They pushed and pushed. {crash}! They both fell
into the water and felt {gloom}. "Why do you not take turns?" asked {a bird} {kindly} from {a tree} tree. So
{friend} went first, and then {pet} went over the bridge. "{cheer}! That was easy," said {pet}. They felt
{feeling}. {closing}

# the little engine
{once}, there lived a little {color} {vehicle} named {pet}. The big cars laughed because {he pet} was so slow,
and {pet} felt {gloom}. One {weather} {time}, {hero} had a birthday party near the {place}, at the top of a
steep hill. But the big cars could not bring the {flavor} cake up the hill! "I will try," said {pet} {kindly}.
{He pet} took the cake, {number} candles, and {a toy}. {sound}! Up and up went the little engine. "{cheer}!
You did it!" cried {hero} at the top. Everyone had cake and some {treats}, and nobody ever laughed at {pet}
again. {closing}

# the hiccups
{once}, there lived {a creature} named {pet} who had the hiccups. "{sound}!" went {pet}, and {a color} bubble
came out. Nobody near the {place} could sleep, and {pet} felt {gloom}. "I will help you," said {hero}
{kindly}. First {he} brought some {treats}, but that did not help. Then they counted to {number}, but that did
not help. Then {hero} put on {a look} {wear}, hid behind {a tree} tree, and jumped out. "Boo!" Now the hiccups
were gone. "{cheer}!" said {pet}, and gave {hero} {a treasure}. They both felt {feeling}. {closing}

# the upside-down wand
{once}, there lived {a trait} wizard named {friend}. One day, {he friend} waved {a look} wand to make some
{treats}. {sound}! {A animal} stood on the table. The wizard tried again. {sound}! Now {number} {fruits} were
dancing around the room. {friend} felt {gloom}. A {boy} named {hero} heard the noise and came in from the
{place}. "Your wand is upside down," said {hero} {kindly}. So the wizard turned it around and tried once more.
Now the animal was gone, and there was the food. "{cheer}!" cried {friend}. They ate together and felt
{feeling}. {closing}

# the queen who could not laugh
{once}, there lived {a trait} {king} named {hero} who could not laugh. {A job} told a joke about {a animal},
but the {king} did not laugh. The cook brought some {treats}, but the {king} did not laugh. {hero} felt
{gloom}. Then a {boy friend} named {friend} came with {a critter} in {a wear}. "Just watch," said {friend}
{kindly}. The little animal danced to the {instrument} and fell into {a box}. {crash}! {hero} began to laugh
and could not stop. "{cheer}!" cried the {king}. "How can I thank you?" "Come and play {game} with us," said
{friend}. So they played all day long. {closing}

# the fallen star
One night, a little star fell down near the {place}. {hero} found it under {a tree} tree. It was no bigger
than {a treasure}. "I want to go home," said the star. "I will help you," said {hero} {kindly}. {He} put the
star into {a box} and {walked} to {friend}. They tied it to {number} {color} balloons, but {a bird} popped
them all. They felt {gloom}. Then {a creature} named {pet} came by. "I can throw very far," said {pet}. And
{he pet} threw the star up, up, up, until it was back in the sky. "{cheer}!" shouted {hero} and {friend}. They
all felt {feeling}. {closing}

# small but brave
Nobody believed that {pet} the {bug} could be brave. The big animals laughed, and {pet} felt {gloom}. One
{weather} {time}, {a animal} named {friend} fell into a deep hole near the {place}. "Help! I cannot get out!"
The hole was too narrow for the big animals. "I am small enough," said {pet} {kindly}. {He pet} climbed down
with {a color} rope. Then all the animals counted to {number} and pulled. {sound}! Out they came. "{cheer}!
You saved me," said {friend}. They made {him pet} a crown of {flowers} and ate some {treats}. {pet} felt
{feeling}. {closing}

# room under the mushroom
It began to rain, and {a bug} named {pet} hid under a mushroom near the {place}. Soon {a critter} came. "Come
in. There is room," said {pet} {kindly}. Then came {a bird} with {a color} leaf on its head. "Come in. There
is room," said {pet}. Then came {a animal} named {friend}. "You are too big," said the others, and {friend}
felt {gloom}. "There is room," said {pet}. They all moved closer, and they all fit. "{cheer}!" said {friend}.
They ate some {treats} and told {number} stories about {topic}. When the rain stopped, they all felt
{feeling}. {closing}

# the way to the reef
Deep down in the sea, {a sea} named {pet} could not find {his pet} way home. {pet} felt {gloom}. "Where is the
{color} reef?" {he pet} asked. "I do not know," said an old crab. Then a diver named {hero} came by. "I will
help you," said {hero} {kindly}. {He} took a map of the sea out of {a box}. Together, they swam past {number}
rocks and {a look} ship. At last, there was the reef. "{cheer}! I am home!" said {pet}, and gave {hero}
{a treasure}. That evening, {hero} ate some {treats} with {elder} and told {him elder} about the sea. They
felt {feeling}. {closing}

# the robot with one word
{hero} built a robot out of {a box} and {number} buttons. {He} painted it {color} and named it {pet}. But the
robot knew only one word. "Do you want to play {game}?" asked {hero}. "{sound}," said the robot. "Do you want
some {treats}?" asked {hero}. "{sound}," said the robot. {hero} felt {gloom}. "Maybe it needs a heart," said
{friend} {kindly}. So they cut a heart out of paper and put it into the robot. "{cheer}! I like {hobby}," said
{pet}. Then the three friends {walked} to the {place}. They felt {feeling}. {closing}

# the lonely scarecrow
In a field near the {place} stood a scarecrow named {pet}. {He pet} wore {a color} {wear} with {number}
buttons. All the birds were afraid, and {pet} felt {gloom}. One {weather} {time}, {a bird} was caught in a
net. "Please help me," said the bird. The scarecrow reached out and opened the net. "You are not scary at
all," said the bird {kindly}. Soon all the birds came to see {pet}. They brought {fruits} and {a treasure} and
sang about {topic}. {hero} from the farm played the {instrument}. "{cheer}!" said {pet}. The scarecrow was
never lonely again. {closing}

# the thunder
{hero} had {a critter} named {pet} who was afraid of thunder. One {time}, dark clouds came over the {place}.
Boom! {pet} ran away to hide. {hero} felt {gloom}. {He} looked {hide}, and there was the little animal! "Do
not be afraid," said {hero} {kindly}. "It is only {a creature} playing the {instrument} in the clouds." {He}
brought {a color} blanket and sang about {topic}. Boom! They counted to {number}, and then it was over.
{friend} came in with some {treats}. "{cheer}! You were so brave," said {friend}. They all felt {feeling}.
{closing}

# the great sneeze
{once}, there lived {a animal} named {pet} who could not stop sneezing. "{sound}!" sneezed {pet}, and {number}
leaves fell from {a tree} tree. "Please stop," said {a bird}. "I cannot," said {pet}. {He pet} felt {gloom}.
Then a doctor named {friend} came from the {place} with {a box}. "Let me see," said {friend} {kindly}. "There
is {a color} feather in your nose!" The doctor pulled it out, and the sneezing stopped. "{cheer}!" said {pet}.
They had a party with some {treats}. But then the bird put its beak into some pepper. "{sound}!" sneezed the
bird, and they all laughed. {closing}

# the one who could not sleep
{A animal} named {pet} could not fall asleep. {He pet} lay down under {a color} blanket and drank some
{flavor} milk. {He pet} counted to {number}, but that did not help. {pet} felt {gloom}. So {he pet} went to
{friend}, {a bird} who lived near the {place}. "I cannot sleep either," said {friend} {kindly}. "Let us tell
stories." {pet} told a story about {topic}. {friend} told a story about {a creature} who loved {treats}. It
was so long that they both began to snore. In the morning, {pet} was still hugging {a toy}. "{cheer}! I slept
so well," {he pet} said. {closing}

# the net
A big {animal} named {friend} was sleeping near the {place}. {A critter} named {pet} bumped into {him friend}
and woke {him friend} up. "Please let me go," said {pet}. "I will help you one day." {friend} laughed and let
the little animal go. After {number} days, {friend} was caught in {a color} net and felt {gloom}. Then {pet}
{walked} over. "Hold still," {he pet} said {kindly}. {He pet} opened the knots one by one, and the net fell
off. "{cheer}! Even a small friend can be a big help," said {friend}. They ate some {treats} under {a tree}
tree and played {game}. {closing}

# all mine
{A animal} named {pet} found {a box} full of {fruits}. "They are all mine," said {pet}, and hid them {spot}.
Then {a critter} named {friend} came by. "May I have one?" asked {friend}. "No," said {pet}, and ate {number}
of them at once. Oh, what a tummy ache! {pet} felt {gloom}. But {friend} came back with {a color} cup. "Drink
this tea," {he friend} said {kindly}. "I am sorry," said {pet}. "You can have half of them." "{cheer}!" said
{friend}. {A bird} came by with some {treats}, and they all felt {feeling}. {closing}

# the moon as a gift
{hero} wanted to give the moon to {elder}. {He} climbed up {a look} ladder near the {place}, but the moon was
too high. {He} threw {a color} rope, but the moon was too far. {He} asked {a bird} to bring it down. "I cannot
fly that high," said the bird {kindly}. {hero} felt {gloom}. Then {he} saw the moon in a bucket of water!
"{cheer}!" cried {hero}. {friend} helped {him} to carry the bucket home, past {number} houses. {elder} looked
at the moon in the bucket and {smiled}. "It is the best gift of all," said {elder}. They ate some {treats} and
felt {feeling}. {closing}

# one wish
While cleaning the attic, {hero} rubbed {a color} lamp. {sound}! Out came a genie named {pet}. "You have one
wish," said {pet} {kindly}. {He} thought of {a toy} and of {number} plates of {treats}. Then {hero} saw that
the genie felt {gloom}. "What is wrong?" asked {hero}. "I miss my home near the {place}," said the genie. "I
cannot leave the lamp." "Then I wish that you were free," said {hero}. The lamp turned into {a bird} and flew
away. "{cheer}! Thank you!" cried {pet}. The genie went home, but {he pet} often came back to play {game} with
{hero} and {friend}. {closing}

# the talking tree
In the middle of the woods stood {a tree} tree that could talk. It knew {number} stories. One {fine} {time},
{hero} sat down under it with {friend}. "Please tell us a story about {topic}," said {hero}. "I am too sad,"
said the tree. "Soon I will be cut down." {hero} felt {gloom}. "We will save you," said {friend} {kindly}.
They hung {flowers} on every branch, and {neighbor} played the {instrument}. Then {a job} came with a saw.
"What a lovely tree! I will not cut it down." "{cheer}!" cried {hero}. They all ate some {treats} and felt
{feeling}. {closing}

# the gentle giant
A gentle giant named {pet} lived near the {place}. {His pet} {wear} was made out of {number} tents. One
{time}, the giant stepped on {neighbor}'s {flowers} by mistake. {crash}! {pet} felt {gloom}. Only {hero} was
not afraid. "You did not mean to do it," said {hero} {kindly}. {He} gave the giant {a color} bag of seeds.
Soon there were new flowers all over the hill. Then {pet} lifted {a vehicle} out of the mud. "{cheer}! You are
a good giant," said {neighbor}. They all ate some {treats} and felt {feeling}. {closing}

# the toys at night
Late at night, when {hero} was asleep, {his} toys woke up. "Where is {pet}?" asked the {toy}. {pet} was
{a color} cloth {animal}, and {he pet} was missing. The toys felt {gloom}. "Let us look {spot}," said a tin
soldier named {friend}. They climbed out of the window and met {a critter}. "Sit on my back," it said
{kindly}, and took them past {number} trees. There was {pet}! "{cheer}! You came for me!" They put {a wear} on
{him pet} and went home past the {place}. In the morning, {hero} found {pet} in bed and felt {feeling}.
{closing}

# the cloud that would not rain
A little cloud named {pet} did not want to rain. Down in the garden, the {flowers} were thirsty. "Please rain
for us," said {hero}. "If I rain, I will be gone," said {pet}. The cloud felt {gloom}. "You will come back,"
said {a bird} {kindly}. "The rain runs past the {place} to the sea, and the sun lifts it up again." So {pet}
counted to {number} and let go. {hero} put on {a color} {wear} and danced in the rain with {friend} and
{a critter}. "{cheer}!" they cried. Soon the little cloud was back in the sky. "I saw {a sea} in the sea,"
said {pet}. {closing}

# the lost song
{A bird} named {pet} had lost {his pet} song. {He pet} opened {his pet} beak, but it only went "{sound}!"
{pet} felt {gloom}. {He pet} asked {a animal} named {friend} for help. "A song is in your heart," said
{friend} {kindly}. "What do you love?" "I love {weather} days, {flowers}, and {treats}," said {pet}. The words
began to sound like a song. {hero} came from the {place} to listen, and so did {number} other birds. "{cheer}!
You found it," said {friend}. The bird sang until evening and felt {feeling}. {closing}

# the mouse in the bakery
Every night, a mouse named {pet} came to {neighbor}'s bakery and took {number} {treats}. "I will catch the
thief," said {neighbor}, who felt {gloom}. {He neighbor} hid behind {a color} {box}. {crash}! {pet} fell into
some {flavor} cream. "Please do not be angry," said the mouse. "My children are hungry." "Then you may work
for me," said {neighbor} {kindly}. From then on, {pet} wore {a wear} and helped to bake. "{cheer}! This is the
best bakery in the world," said {a job} who lived near the {place}. They both felt {feeling}. {closing}

# the best hiding place
The animals of the forest were playing hide-and-seek. {friend} the {animal} closed {his friend} eyes and
counted. {pet} the {critter} hid in {a box} near the {place}. {friend} found {a bird} in {a tree} tree and
{a bug} under a leaf. But nobody could find {pet}. They felt {gloom}. "Listen," said {friend} {kindly}.
{sound}! It was {pet}, and {he pet} was snoring! "{cheer}! You won the game!" cried {friend}. The prize was
{a toy}. They all had some {treats} and felt {feeling}. {closing}

# who ate them all?
Someone had eaten all of {pet}'s {treats}. {He pet} was {a animal} who lived near the {place}. "Did you eat
them?" asked {pet}. "No," said {a bird}. "No," said {a critter}. {pet} felt {gloom}. Then {he pet} saw some
crumbs. They went past {number} rocks and {a tree} tree, and right back to {his pet} own {color} bed! There
stood the empty {box}. "I ate them in my sleep!" cried {pet}. "Do not be sad," said {friend} {kindly}. "We
have {fruits} at home." "{cheer}!" They all ate together and felt {feeling}. {closing}

# the leaking boat
{pet} the {animal} wanted to sail across the lake to the {place}. {He pet} made a boat out of {a box}, with
{a color} {wear} for a sail, and took some {treats} along. But in the middle of the lake, the boat began to
leak. {pet} felt {gloom}. "Help!" cried {pet}. "Hold on," said {friend} {kindly}. {friend} was {a bird} who
was flying by. {He friend} called {number} frogs, and the frogs pushed the boat to the shore. "{cheer}! You
saved me," said {pet}. They fixed the boat with mud and sang about {topic} all the way to the other side. They
felt {feeling}. {closing}

# the forest band
It was almost time for the forest party, but there was no music. {pet} the {animal} could play the
{instrument}, but {he pet} was afraid to play alone and felt {gloom}. "I can drum on {a box}," said {friend}
the {critter}. "I can sing," said {a bird}. They met near the {place} and began to play. {sound}! It was only
noise. "Let us listen to each other," said {friend} {kindly}. They counted to {number}, and this time it was
music. "{cheer}! One more song!" shouted the other animals. So they played a song about {topic}, and there
were {treats} for all. {pet} felt {feeling}. {closing}
"""
